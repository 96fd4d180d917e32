// See `upper_level.h`. For a few vectors it takes little more than reading the matrices; of many, libraries' products are
// as fast or faster.

#include "upper_level.h"

#include <memory>

#include "log_softmax.h"
#include "threads.h"
#include "tiles.h"

namespace {

constexpr int64_t ROWS = 32;  // of a matrix, multiplied at a time

// work(first row, rows, first vector, vectors) by pieces of the products of `count` vectors with so many rows.
template <class Work>
void by_blocks(int threads, int64_t rows, int64_t count, Work work) {
    const int64_t across = (rows + ROWS - 1) / ROWS, down = (count + TOKENS - 1) / TOKENS;
    share_work(threads, across * down, [&](int64_t number) {
        const int64_t row = number % across * ROWS, vector = number / across * TOKENS;
        work(row, std::min(ROWS, rows - row), vector, std::min(TOKENS, count - vector));
    });
}

void project(const Projection &projection, Dense<const float> matrix, int64_t rows, int64_t first,
             Dense<const float> vectors, int64_t count, Dense<float> out) {
    const auto [kept, share, least] = projection;
    dots(vectors, count, matrix, rows, out.first + first, out.dim);
    for (int64_t vector = 0; vector < count; ++vector)
        for (int64_t d = first; d < first + rows; ++d) {
            float &place = out[vector][d];
            place = kept * vectors[vector][d] + share * (place < least ? least : place);
        }
}

}  // namespace

void upper_level(int threads, const UpperLevel &level, const float *vectors, int64_t count, float *log_cluster,
                 float *word_vectors) {
    const int64_t dim = level.dim;
    const Dense<const float> given{vectors, dim};
    const std::unique_ptr<float[]> projected(level.cluster_projection ? new float[count * dim] : nullptr);
    const Dense<float> for_clusters{projected.get(), dim}, for_words{word_vectors, dim};

    // Both projections at once, the rows of one after those of the other.
    const int64_t of_clusters = level.cluster_projection ? dim : 0, of_words = level.word_projection ? dim : 0;
    const auto of = [&](const float *matrix, int64_t row) { return Dense<const float>{matrix + row * dim, dim}; };
    by_blocks(threads, of_clusters + of_words, count, [&](int64_t row, int64_t rows, int64_t vector, int64_t some) {
        const int64_t own = std::clamp<int64_t>(of_clusters - row, 0, rows);
        if (own)
            project(level.projection, of(level.cluster_projection, row), own, row, given.from(vector), some,
                    for_clusters.from(vector));
        if (own < rows) {
            const int64_t first = row + own - of_clusters;
            project(level.projection, of(level.word_projection, first), rows - own, first, given.from(vector), some,
                    for_words.from(vector));
        }
    });

    const Dense<const float> read{projected ? projected.get() : vectors, dim};
    by_blocks(threads, level.count, count, [&](int64_t row, int64_t rows, int64_t vector, int64_t some) {
        float *own = log_cluster + vector * level.count + row;
        dots(read.from(vector), some, of(level.clusters, row), rows, own, level.count);
        if (level.bias)
            for (int64_t each = 0; each < some; ++each, own += level.count)
                for (int64_t cluster = 0; cluster < rows; ++cluster) own[cluster] += level.bias[row + cluster];
    });
    by_blocks(threads, 1, count, [&](int64_t, int64_t, int64_t vector, int64_t some) {
        for (int64_t each = vector; each < vector + some; ++each)
            log_softmax(log_cluster + each * level.count, level.count, 0);
    });
}
