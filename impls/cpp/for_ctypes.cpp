// `cluster_products.h` for callers that have pointers and numbers.

#include "cluster_products.h"

extern "C" {

void scores_of_pointers(int threads, const float *vectors, const int64_t *row, const float *words, const int64_t *start,
                        const int64_t *size, const int32_t *end, int64_t count, int64_t dim, int64_t slots,
                        const float *bias, float *scores) {
    cluster_scores(threads, vectors, row, words, {count, start, size, end, dim, slots}, bias, scores);
}

void gradients_of_pointers(int threads, const float *vectors, const int64_t *row, const float *words,
                           const int64_t *start, const int64_t *size, const int32_t *end, int64_t count, int64_t dim,
                           int64_t slots, const float *dscores, float *dvectors, float *dwords) {
    cluster_gradients(threads, vectors, row, words, {count, start, size, end, dim, slots}, dscores, dvectors, dwords);
}
}
