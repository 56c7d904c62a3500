#include "server/choose/shape_distance.h"

#include <math.h>

#define LAYER_WEIGHT 2 /* of the sizes of the layer against the token count */

static double doublings(double a, double b)
{
    return fabs(log2(a / b));
}

double mf_shape_distance(const struct mf_shape *a, const struct mf_shape *b)
{
    struct mf_shape like = *b;
    like.token = a->token;
    like.model_dim = a->model_dim;
    like.inter_dim = a->inter_dim;
    like.expert = a->expert;
    like.topk = a->topk;
    if (!mf_shape_equal(a, &like))
        return (double)INFINITY;
    return doublings((double)a->token, (double)b->token) +
           LAYER_WEIGHT * (doublings(a->model_dim, b->model_dim) + doublings(a->inter_dim, b->inter_dim) +
                           doublings(a->expert, b->expert) + doublings(a->topk, b->topk));
}
