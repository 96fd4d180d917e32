// See `word_steps.h`.
//
// A step reads each of its output vectors twice, once for the scores and once for the update. They lie anywhere in
// memory, and are fetched while the previous example is computed.

#include "word_steps.h"

#include <cmath>

#include "log_sigmoid.h"
#include "products_with.h"
#include "scratch.h"
#include "threads.h"

namespace vocabench {

namespace {

constexpr int AT_ONCE = 4;  // output vectors read together

void prefetch(const float *vector, int64_t dim) {
    for (int64_t d = 0; d < dim; d += LINE) __builtin_prefetch(vector + d);
}

// out += factor * vector
void add(float factor, const float *vector, int64_t dim, float *out) {
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES) store(out + d, load(out + d) + factor * load(vector + d));
    for (; d < dim; ++d) out[d] += factor * vector[d];
}

float mean_square(const float *vector, int64_t dim) {
    float total;
    products_with<1>(vector, &vector, dim, &total);
    return total / static_cast<float>(dim);
}

// Multiplies scores (rounded up to whole vectors) by their signs and replaces them by sign * sigma(-sign * score), the
// factors of their vectors in the negative gradient. Returns the sum of -log sigma(sign * score).
float factors_of(float *scores, const float *signs, int64_t count) {
    float loss = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        const Vector sign = load(signs + first);
        const Turns<Vector> turns = log_turns(sign * load(scores + first));
        store(scores + first, sign * exp(turns.right));
        float losses[LANES];
        store(losses, turns.left);
        for (int64_t lane = 0; lane < std::min<int64_t>(LANES, count - first); ++lane) loss -= losses[lane];
    }
    return loss;
}

// Steps at one rate for all vectors, or divided by the roots of their sums of squares (ADAGRAD).
template <bool ADAGRAD>
class Steps {
  public:
    Steps(const WordExamples &examples, WordVectors inputs, WordVectors outputs)
        : examples_(examples),
          inputs_{inputs.vectors, examples.dim},
          outputs_{outputs.vectors, examples.dim},
          input_squares_(inputs.squares),
          output_squares_(outputs.squares) {
        const int64_t depth = (examples.depth + LANES - 1) / LANES * LANES;
        floats_ = scratch<Steps<ADAGRAD>>(2 * examples.dim + 2 * depth);
        mean_ = floats_, dmean_ = mean_ + examples.dim, scores_ = dmean_ + examples.dim, signs_ = scores_ + depth;
        std::fill_n(scores_, 2 * depth, 0.0f);
        rows_.resize(examples.depth);
        ids_.resize(examples.depth);
    }

    // Takes the step of an example and returns its loss before it.
    float take(int64_t example, float rate) {
        const int64_t dim = examples_.dim;
        const int32_t *inputs = examples_.inputs + example * examples_.width;
        const int64_t count = select(example);
        const float share = 1.0f / std::count_if(inputs, inputs + examples_.width, [](int32_t id) { return id >= 0; });
        const float *mean = mean_;
        if (examples_.width == 1) {
            mean = inputs_[*inputs];
        } else {
            std::fill_n(mean_, dim, 0.0f);
            for_each_input(inputs, [&](int32_t id) { add(share, inputs_[id], dim, mean_); });
        }
        by_pieces<AT_ONCE>(count, [&](int64_t first, auto size) {
            products_with<size()>(mean, rows_.data() + first, dim, scores_ + first);
        });
        const float loss = factors_of(scores_, signs_, count);
        std::fill_n(dmean_, dim, 0.0f);
        by_pieces<AT_ONCE>(count, [&](int64_t first, auto size) { sum_rows<size()>(first); });
        if constexpr (ADAGRAD) {
            const float square = mean_square(mean, dim), dsquare = share * share * mean_square(dmean_, dim);
            for (int64_t row = 0; row < count; ++row)
                scores_[row] *= scaled(rate, output_squares_[ids_[row]] += scores_[row] * scores_[row] * square);
            change_rows(count, mean);
            for_each_input(inputs, [&](int32_t id) {
                add(share * scaled(rate, input_squares_[id] += dsquare), dmean_, dim, inputs_[id]);
            });
        } else {
            for (int64_t row = 0; row < count; ++row) scores_[row] *= rate;
            change_rows(count, mean);
            for_each_input(inputs, [&](int32_t id) { add(share * rate, dmean_, dim, inputs_[id]); });
        }
        return loss;
    }

    void prefetch_vectors(int64_t example) const {
        if (examples_.list[example] < 0) return;
        const int64_t list = examples_.list[example] * examples_.depth;
        const bool is_new = !example || examples_.list[example] != examples_.list[example - 1];
        for (int64_t place = list; is_new && place < list + examples_.depth; ++place)
            if (examples_.sign[place]) prefetch(outputs_[examples_.row[place]], examples_.dim);
        for_each_input(examples_.inputs + example * examples_.width,
                       [&](int32_t id) { prefetch(inputs_[id], examples_.dim); });
    }

  private:
    template <class Work>
    void for_each_input(const int32_t *inputs, Work work) const {
        for (int64_t place = 0; place < examples_.width; ++place)
            if (inputs[place] >= 0) work(inputs[place]);
    }

    // Finds the output vectors of an example and their signs, and returns how many there are.
    int64_t select(int64_t example) {
        const int64_t list = examples_.list[example] * examples_.depth;
        int64_t count = 0;
        for (int64_t place = list; place < list + examples_.depth; ++place)
            if (examples_.sign[place]) {
                if constexpr (ADAGRAD) ids_[count] = examples_.row[place];
                rows_[count] = outputs_[examples_.row[place]];
                signs_[count++] = examples_.sign[place];
            }
        return count;
    }

    // Returns the rate of a vector with this sum of squares.
    static float scaled(float rate, float squares) { return rate / std::sqrt(squares); }

    void change_rows(int64_t count, const float *mean) {
        for (int64_t row = 0; row < count; ++row) add(scores_[row], mean, examples_.dim, rows_[row]);
    }

    // Adds S output vectors, times their factors, to dmean_, before any of them is changed: a list may repeat a vector.
    template <int S>
    void sum_rows(int64_t first) {
        const int64_t dim = examples_.dim;
        const float *factors = scores_ + first;
        int64_t d = 0;
        for (; d + LANES <= dim; d += LANES) {
            Vector total = load(dmean_ + d);
            for (int s = 0; s < S; ++s) total += factors[s] * load(rows_[first + s] + d);
            store(dmean_ + d, total);
        }
        for (; d < dim; ++d)
            for (int s = 0; s < S; ++s) dmean_[d] += factors[s] * rows_[first + s][d];
    }

    const WordExamples &examples_;
    Dense<float> inputs_, outputs_;
    float *input_squares_, *output_squares_;
    float *floats_, *mean_, *dmean_, *scores_, *signs_;
    std::vector<float *> rows_;
    std::vector<int32_t> ids_;
};

}  // namespace

template <bool ADAGRAD>
static double steps_of(int threads, const WordExamples &examples, float first_rate, float last_rate, WordVectors inputs,
                       WordVectors outputs) {
    const int64_t count = examples.count, parts = std::max<int64_t>(1, std::min<int64_t>(threads, count));
    std::vector<double> losses(parts);
    share_work(threads, parts, [&](int64_t part) {
        Steps<ADAGRAD> steps(examples, inputs, outputs);
        const int64_t end = count * (part + 1) / parts;
        double loss = 0;
        for (int64_t example = count * part / parts; example < end; ++example) {
            if (example + 1 < end) steps.prefetch_vectors(example + 1);
            if (examples.list[example] < 0) continue;
            const float done = static_cast<float>(example) / static_cast<float>(count);
            loss += steps.take(example, first_rate + (last_rate - first_rate) * done);
        }
        losses[part] = loss;
    });
    double total = 0;
    for (const double loss : losses) total += loss;
    return total;
}

double word_steps(int threads, const WordExamples &examples, float first_rate, float last_rate, WordVectors inputs,
                  WordVectors outputs) {
    const auto take = inputs.squares ? steps_of<true> : steps_of<false>;
    return take(threads, examples, first_rate, last_rate, inputs, outputs);
}

}  // namespace vocabench
