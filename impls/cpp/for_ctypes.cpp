// The kernels as C functions of pointers and integers. Each returns one of the status codes below.

#include <exception>
#include <new>
#include <type_traits>

#include "cluster_losses.h"
#include "cluster_products.h"
#include "fused_softmax.h"
#include "matrix_products.h"
#include "tree_paths.h"
#include "tree_search.h"
#include "two_levels.h"
#include "weight_gradient.h"

namespace vocabench {

namespace {

constexpr int DONE = 1, REFUSED = 0, NO_MEMORY = -1, FAILED = -2;

// Runs a kernel and returns its status. A kernel refuses its arguments by returning false.
template <class Call>
int attempt(Call call) {
    try {
        if constexpr (std::is_void_v<decltype(call())>)
            call();
        else if (!call())
            return REFUSED;
        return DONE;
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    } catch (const std::exception &) {
        return FAILED;
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int scores_of_pointers(int threads, const float *vectors, const int64_t *row, const float *words, const int64_t *start,
                       const int64_t *size, const int32_t *end, int64_t count, int64_t dim, int64_t slots,
                       const float *bias, float *scores) {
    return attempt(
        [&] { cluster_scores(threads, vectors, row, words, {count, start, size, end, dim, slots}, bias, scores); });
}

int losses_of_pointers(int threads, const float *vectors, const int64_t *row, const float *words, const int64_t *start,
                       const int64_t *size, const int32_t *end, int64_t count, int64_t dim, int64_t slots,
                       const int32_t *slot, const float *bias, float *losses, float *excess, float *dvectors) {
    return attempt([&] {
        cluster_losses(threads, vectors, row, slot, words, {count, start, size, end, dim, slots}, bias, losses, excess,
                       dvectors);
    });
}

int gradients_of_pointers(int threads, const float *vectors, const int64_t *row, const int64_t *start,
                          const int64_t *size, const int32_t *end, int64_t count, int64_t dim, int64_t slots,
                          const float *excess, const float *weight, float *dwords, float *dbias) {
    return attempt([&] {
        cluster_gradients(threads, vectors, row, {count, start, size, end, dim, slots}, excess, weight, dwords, dbias);
    });
}

int likeliest_of_pointers(int threads, const float *vectors, const float *log_cluster, const float *words,
                          const float *bias, const int64_t *ids_of, const int64_t *start, const int64_t *size,
                          int64_t rows, int64_t count, int64_t dim, int64_t slots, int64_t k, float *values,
                          int64_t *ids, float *share) {
    return attempt([&] {
        const ClusteredWords<int64_t> clustered{words, bias, ids_of, {count, start, size, nullptr, dim, slots}};
        likeliest_words<int64_t>(threads, {rows, vectors, log_cluster}, clustered, {k, values, ids, share});
    });
}

int likeliest_of_hidden_pointers(int threads, const float *hidden, const float *cluster_projection,
                                 const float *word_projection, const float *cluster_weight, const float *cluster_bias,
                                 const float *words, const float *bias, const int64_t *ids_of, const int64_t *start,
                                 const int64_t *size, int64_t rows, int64_t count, int64_t dim, int64_t slots,
                                 int64_t k, float kept, float share_of_projected, float least, float *values,
                                 int64_t *ids, float *share) {
    return attempt([&] {
        const Projection projection{kept, share_of_projected, least};
        const UpperLevel level{dim,        count,          cluster_projection, word_projection,
                               projection, cluster_weight, cluster_bias};
        const ClusteredWords<int64_t> clustered{words, bias, ids_of, {count, start, size, nullptr, dim, slots}};
        likeliest_of_hidden<int64_t>(threads, level, hidden, rows, clustered, {k, values, ids, share});
    });
}

int fused_softmax_of_pointers(int threads, const float *vectors, const float *words, const float *bias,
                              const int64_t *target, const float *share, int64_t count, int64_t vocab, int64_t dim,
                              int64_t most, int64_t by_unit, float *total, float *dvectors, float *dwords,
                              float *dbias) {
    return attempt([&] {
        const Examples examples{count, dim, vectors, target, share};
        return fused_softmax(threads, examples, vocab, most, by_unit, words, bias, total, dvectors, dwords, dbias);
    });
}

int likeliest_leaves_of_pointers(int threads, const float *vectors, const float *nodes, const int64_t *children,
                                 int64_t rows, int64_t count, int64_t dim, int64_t k, float *values, int64_t *ids,
                                 float *share) {
    return attempt([&] {
        likeliest_leaves<int64_t>(threads, {count, dim, nodes, children}, vectors, rows, {k, values, ids, share});
    });
}

int leaves_of_beam_of_pointers(int threads, const float *vectors, const float *nodes, const int64_t *children,
                               int64_t rows, int64_t count, int64_t dim, int64_t k, int64_t width, float *values,
                               int64_t *ids, float *share) {
    return attempt([&] {
        leaves_of_beam<int64_t>(threads, {count, dim, nodes, children}, vectors, rows, width, {k, values, ids, share});
    });
}

int matrix_product_of_pointers(int threads, const float *left, const float *right, int64_t rows, int64_t depth,
                               int64_t columns, int64_t left_by_row, int64_t left_by_number, int64_t right_by_row,
                               int64_t right_by_number, float *out) {
    return attempt([&] {
        matrix_product(threads, {left, rows, depth, left_by_row, left_by_number},
                       {right, columns, depth, right_by_row, right_by_number}, out);
    });
}

int path_losses_of_pointers(int threads, const float *vectors, const int32_t *index, const int32_t *sign,
                            const int32_t *place, const float *nodes, int64_t count, int64_t dim, int64_t depth,
                            float *losses, float *dscores, float *dvectors) {
    return attempt([&] {
        path_losses(threads, {count, dim, depth, vectors, index, sign, place}, nodes, losses, dscores, dvectors);
    });
}

int path_gradients_of_pointers(int threads, const float *vectors, const int32_t *index, const int32_t *sign,
                               const int32_t *place, const float *dscores, int64_t count, int64_t dim, int64_t depth,
                               int64_t nodes, float *dnodes) {
    return attempt(
        [&] { path_gradients(threads, {count, dim, depth, vectors, index, sign, place}, dscores, nodes, dnodes); });
}

int weight_gradient_of_pointers(int threads, const float *dscores, const float *vectors, int64_t tokens, int64_t count,
                                int64_t dim, float *dwords) {
    return attempt([&] { weight_gradient(threads, dscores, vectors, tokens, count, dim, dwords); });
}
}  // extern "C"
#pragma GCC visibility pop

}  // namespace vocabench
