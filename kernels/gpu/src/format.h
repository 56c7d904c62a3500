/* MF_FORMAT is the element format of activations and weights in the product, together with the unit that
 * shares a scale: a row; a 1x128 block of activations and a 128x128 block of weights; or the whole tensor
 * (for weights, all weights of one expert). */
#pragma once

#define BF16        0
#define FP8_TOKEN   1
#define FP8_BLOCK   2
#define FP8_TENSOR  3
#define INT8_TOKEN  4
#define INT8_BLOCK  5
#define INT8_TENSOR 6

#define IS_INT8   (MF_FORMAT >= INT8_TOKEN)
#define BY_TOKEN  (MF_FORMAT == FP8_TOKEN || MF_FORMAT == INT8_TOKEN)
#define BY_BLOCK  (MF_FORMAT == FP8_BLOCK || MF_FORMAT == INT8_BLOCK)
#define BY_TENSOR (MF_FORMAT == FP8_TENSOR || MF_FORMAT == INT8_TENSOR)
#define BYTES     (MF_FORMAT == BF16 ? 2 : 1) /* bytes per element */
