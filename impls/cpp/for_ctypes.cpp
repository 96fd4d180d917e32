// `cluster_products.h`, `cluster_search.h`, `fused_softmax.h` and `upper_level.h` for callers that have pointers and
// numbers.

#include "cluster_products.h"
#include "cluster_search.h"
#include "fused_softmax.h"
#include "upper_level.h"

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

void likeliest_of_pointers(int threads, const float *vectors, const float *log_cluster, const float *words,
                           const float *bias, const int64_t *ids_of, const int64_t *start, const int64_t *size,
                           int64_t rows, int64_t count, int64_t dim, int64_t slots, int64_t k, int64_t most,
                           float *values, int64_t *ids, int64_t *expanded) {
    likeliest_words(threads, {rows, vectors, log_cluster}, words, bias, ids_of,
                    {count, start, size, nullptr, dim, slots}, k, most, values, ids, expanded);
}

int fused_softmax_of_pointers(int threads, const float *vectors, const float *words, const float *bias,
                              const int64_t *target, const float *share, int64_t count, int64_t vocab, int64_t dim,
                              int64_t most, float *total, float *dvectors, float *dwords, float *dbias) {
    const Examples examples{count, dim, vectors, target, share};
    return fused_softmax(threads, examples, vocab, most, words, bias, total, dvectors, dwords, dbias);
}

void upper_level_of_pointers(int threads, const float *vectors, const float *cluster_projection,
                             const float *word_projection, const float *clusters, const float *bias, int64_t rows,
                             int64_t dim, int64_t count, float kept, float share, float least, float *log_cluster,
                             float *word_vectors) {
    const UpperLevel level{dim, count, cluster_projection, word_projection, {kept, share, least}, clusters, bias};
    upper_level(threads, level, vectors, rows, log_cluster, word_vectors);
}
}
