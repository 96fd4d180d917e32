// Matrices stored in strips of columns, which a register tile reads row by row. With the plain layout, rows that are a
// power of two apart would compete for the same cache sets.

#pragma once

#include <limits>
#include <memory>

#include "scratch.h"
#include "sums.h"
#include "tiles.h"

namespace vocabench {

class Strips {
  public:
    // dim: a multiple of LANES.
    Strips(int64_t rows, int64_t dim)
        : rows_(rows), dim_(dim), owned_(new float[rows * dim]), elements_(owned_.get()) {}
    // Uses `memory`, rows * dim floats that must outlive this.
    Strips(int64_t rows, int64_t dim, float *memory) : rows_(rows), dim_(dim), elements_(memory) {}

    int64_t dim() const { return dim_; }
    template <int VECTORS>
    Dense<float> at(int64_t vector) const {
        return {elements_ + vector * LANES * rows_, VECTORS * LANES};
    }
    // Calls work(strip, first column, columns) for each strip.
    template <class Work>
    void each(Work work) {
        by_strips(dim_ / LANES, [&](int64_t v, auto size) { work(at<size()>(v), v * LANES, size() * LANES); });
    }
    void copy(Dense<const float> from, int64_t rows) {
        each([&](Dense<float> strip, int64_t first, int64_t count) {
            for (int64_t row = 0; row < rows; ++row) std::copy_n(from[row] + first, count, strip[row]);
        });
    }
    // Copies the transpose of `vectors` rows, with zeros beyond. Works one cache line of each row at a time, so that
    // the lines being written stay in the L1 cache until they are full. One row at a time takes five times as long.
    template <class Vectors>
    void copy_across(Vectors from, int64_t vectors) {
        each([&](Dense<float> strip, int64_t first, int64_t count) {
            for (int64_t start = 0; start < rows_; start += LINE) {
                const int64_t end = std::min<int64_t>(start + LINE, rows_);
                for (int64_t column = first; column < first + count; ++column) {
                    float *place = strip.first + column - first;
                    const float *vector = column < vectors ? from[column] : nullptr;
                    for (int64_t d = start; d < end; ++d) place[d * count] = vector ? vector[d] : 0;
                }
            }
        });
    }
    void clear() { std::fill_n(elements_, rows_ * dim_, 0.0f); }

  private:
    int64_t rows_, dim_;
    std::unique_ptr<float[]> owned_;
    float *elements_;
};

constexpr int64_t LAID = 12;  // fewest vectors worth transposing: with fewer, most lanes would be empty

static int64_t whole_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Transposes vectors, so that each has a lane.
static Strips laid(Picked<const float> vectors, int64_t count) {
    Strips across(vectors.dim, whole_lanes(count));
    across.copy_across(vectors, count);
    return across;
}

struct Laid {};

// The same in scratch memory of the thread, valid until its next call.
static Strips laid_in_scratch(Picked<const float> vectors, int64_t count) {
    const int64_t places = whole_lanes(count);
    Strips across(vectors.dim, places, scratch<Laid>(vectors.dim * places));
    across.copy_across(vectors, count);
    return across;
}

// out (size, across.dim()): dot products of words (size, dim) with transposed vectors.
static void products(Dense<const float> words, int64_t size, const Strips &across, Dense<float> out) {
    by_strips(across.dim() / LANES, [&](int64_t v, auto vectors) {
        const Dense<float> columns{out.first + v * LANES, out.dim};
        with_constant(v == 0, [&](auto ahead) {
            const auto strip = across.at<vectors()>(v);
            strip_sums<vectors(), To::SET, ahead()>(words.first, words.dim, 1, size, words.dim, strip, 0, columns);
        });
    });
}

// Adds the biases (size,) of words, or nothing if null, to their scores with the vectors in lanes. Returns the highest
// score of each lane, which is finite even if all are -inf.
static Vector add_biases(Dense<float> scores, int64_t size, const float *bias) {
    Vector highest = Vector{} + std::numeric_limits<float>::lowest();
    for (int64_t s = 0; s < size; ++s) {
        const Vector score = bias ? load(scores[s]) + bias[s] : load(scores[s]);
        highest = score > highest ? score : highest;
        store(scores[s], score);
    }
    return highest;
}

}  // namespace vocabench
