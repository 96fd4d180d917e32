// See `upper_level.h`. For a few vectors this takes little more than reading the matrices. For many vectors, the
// products of libraries are as fast or faster.

#include "upper_level.h"

#include <memory>

#include "log_softmax.h"
#include "threads.h"
#include "tiles.h"

namespace vocabench {

namespace {

constexpr int64_t ROWS = 32;  // rows of a matrix in one block of work

// Calls work(first row, rows, first vector, vectors) for blocks of the products of `count` vectors with `rows` rows.
template <class Work>
void by_blocks(int threads, int64_t rows, int64_t count, Work work) {
    const int64_t across = (rows + ROWS - 1) / ROWS, down = (count + TOKENS - 1) / TOKENS;
    share_work(threads, across * down, [&](int64_t block) {
        const int64_t row = block % across * ROWS, vector = block / across * TOKENS;
        work(row, std::min(ROWS, rows - row), vector, std::min(TOKENS, count - vector));
    });
}

void project(const Projection &projection, Dense<const float> matrix, int64_t rows, int64_t first,
             Dense<const float> vectors, int64_t count, Dense<float> out) {
    const auto [kept, share, least] = projection;
    dots(vectors, count, matrix, rows, out.first + first, out.dim);
    for (int64_t vector = 0; vector < count; ++vector)
        for (int64_t d = first; d < first + rows; ++d) {
            float &element = out[vector][d];
            element = kept * vectors[vector][d] + share * (element < least ? least : element);
        }
}

}  // namespace

void upper_level(int threads, const UpperLevel &level, const float *vectors, int64_t count, float *log_cluster,
                 float *word_vectors) {
    const int64_t dim = level.dim;
    const Dense<const float> given{vectors, dim};
    const std::unique_ptr<float[]> projected(level.cluster_projection ? new float[count * dim] : nullptr);
    const Dense<float> for_clusters{projected.get(), dim}, for_words{word_vectors, dim};

    // Both projections in one pass: the rows of the word projection follow those of the cluster projection.
    const int64_t cluster_rows = level.cluster_projection ? dim : 0, word_rows = level.word_projection ? dim : 0;
    const auto from_row = [&](const float *matrix, int64_t row) { return Dense<const float>{matrix + row * dim, dim}; };
    by_blocks(threads, cluster_rows + word_rows, count, [&](int64_t row, int64_t rows, int64_t vector, int64_t size) {
        const int64_t in_first = std::clamp<int64_t>(cluster_rows - row, 0, rows);
        if (in_first)
            project(level.projection, from_row(level.cluster_projection, row), in_first, row, given.from(vector), size,
                    for_clusters.from(vector));
        if (in_first < rows) {
            const int64_t first = row + in_first - cluster_rows;
            project(level.projection, from_row(level.word_projection, first), rows - in_first, first,
                    given.from(vector), size, for_words.from(vector));
        }
    });

    const Dense<const float> cluster_vectors{projected ? projected.get() : vectors, dim};
    by_blocks(threads, level.count, count, [&](int64_t row, int64_t rows, int64_t vector, int64_t size) {
        float *scores = log_cluster + vector * level.count + row;
        dots(cluster_vectors.from(vector), size, from_row(level.clusters, row), rows, scores, level.count);
        if (level.bias)
            for (int64_t token = 0; token < size; ++token, scores += level.count)
                for (int64_t cluster = 0; cluster < rows; ++cluster) scores[cluster] += level.bias[row + cluster];
    });
    by_blocks(threads, 1, count, [&](int64_t, int64_t, int64_t vector, int64_t size) {
        for (int64_t token = vector; token < vector + size; ++token)
            log_softmax(log_cluster + token * level.count, level.count, 0);
    });
}

}  // namespace vocabench
