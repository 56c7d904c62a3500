/* Reads the parameters of candidates from their names: candidates become points of a grid. Pure functions.
 *
 * A name consists of words and numbers: "triton_m64_n128_s3-tma" has the parameters triton (no number), m 64,
 * n 128, s 3 and tma (no number). A word that occurs twice is two parameters. Each parameter is a dimension;
 * its values are numbered in ascending order (levels), so that 16, 32, 64 and 256 are one step apart. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* further parameters of a name are ignored */
#define MF_POINTS_DIMENSIONS_MAX 48
#define MF_POINTS_ABSENT         (-1) /* level of a parameter that a name lacks */

struct mf_points {
    size_t n;
    int n_dimensions;                       /* only those in which the points differ */
    double scale[MF_POINTS_DIMENSIONS_MAX]; /* 1 / (number of values of the dimension - 1) */
    int16_t levels[];                       /* n * n_dimensions */
};

/* The caller frees *ret with free(). Returns -ENOMEM. */
int mf_points_new(const char *const *names, size_t n, struct mf_points **ret);
/* Returns the number of steps between two points: the sum over the dimensions of the difference of levels. A
 * parameter that only one of them has counts as one step. */
int mf_points_steps(const struct mf_points *p, size_t a, size_t b);
/* The same, with each dimension scaled to a width of 1. */
double mf_points_distance(const struct mf_points *p, size_t a, size_t b);
