// See `nucleus.h`. The words are not sorted: their probabilities are summed by buckets of similar words, in one pass,
// and a place in the order is then found among the words of a single bucket. Reading and exponentiating the row takes
// most of the time.

#include "nucleus.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "best.h"
#include "threads.h"
#include "tiles.h"

namespace vocabench {

namespace {

constexpr int BUCKETS = 4096;
constexpr float LEAST = -87.0f;  // probabilities below e^LEAST times the highest are 0

// A word with its probability up to a factor.
struct Candidate {
    Word word;
    float weight;
    bool operator<(const Candidate &other) const { return word < other.word; }
};

// A word with the sum of the weights of all words up to this one.
struct Place {
    int64_t id;
    double sum;
};

// Whether the highest log-probability is finite and none is NaN.
bool is_known(const float *log_probs, int64_t words, float &highest) {
    Vector most = Vector{} - std::numeric_limits<float>::infinity();
    Integers are_nan = {};
    int64_t word = 0;
    for (; word + LANES <= words; word += LANES) {
        const Vector some = load(log_probs + word);
        are_nan |= some != some;
        most = some > most ? some : most;
    }
    bool is_nan = false;
    highest = most[0];
    for (int lane = 0; lane < LANES; ++lane) is_nan |= are_nan[lane] != 0, highest = std::max(highest, most[lane]);
    for (; word < words; ++word) is_nan |= std::isnan(log_probs[word]), highest = std::max(highest, log_probs[word]);
    return !is_nan && std::isfinite(highest);
}

// The words of a row in their order. A thread keeps it, with its memory, for other rows and calls.
class Order {
  public:
    // Returns the word that a uniform number draws from a row. Not inlined: the address of what a thread keeps would be
    // asked for at each use.
    __attribute__((noinline)) int64_t draw(const float *log_probs, int64_t words, float temperature, float top_p,
                                           float uniform) {
        float highest;
        if (!is_known(log_probs, words, highest)) return 0;
        const double total = read(log_probs, words, highest, temperature);
        const double kept = first_to_reach(top_p * total).sum;
        // The sum must exceed the share, not only reach it.
        return first_to_reach(std::nextafter(uniform * kept, std::numeric_limits<double>::infinity())).id;
    }

  private:
    // Reads a row and returns the sum of its weights. Each weight is e^((log_prob - highest) / temperature).
    double read(const float *log_probs, int64_t words, float highest, float temperature) {
        log_probs_ = log_probs, words_ = words;
        const size_t whole = words + LANES;  // the last vector may reach beyond the words
        weight_.resize(std::max(weight_.size(), whole));
        bucket_.resize(std::max(bucket_.size(), whole));
        const float factor = 1 / temperature;
        int64_t word = 0;
        for (; word + LANES <= words_; word += LANES) weigh((load(log_probs + word) - highest) * factor, word);
        if (word < words_) {
            float rest[LANES];
            std::fill(std::copy(log_probs + word, log_probs + words_, rest), rest + LANES, highest);
            weigh((load(rest) - highest) * factor, word);
        }
        sums_.fill(0);
        for (word = 0; word < words_; ++word) sums_[bucket_[word]] += weight_[word];
        double total = 0;
        for (int bucket = 0; bucket < BUCKETS; ++bucket)
            if (sums_[bucket] > 0) total += sums_[last_ = bucket];
        return total;
    }

    // Returns the first word up to which the weights sum to at least `goal`, or the last one with a weight.
    Place first_to_reach(double goal) {
        double before = 0;
        int bucket = 0;
        for (; bucket < last_ && before + sums_[bucket] < goal; ++bucket) before += sums_[bucket];
        candidates_.clear();
        for (int64_t word = 0; word < words_; ++word)
            if (bucket_[word] == bucket) candidates_.push_back({{log_probs_[word], word}, weight_[word]});
        auto first = candidates_.begin(), last = candidates_.end();
        while (last - first > 1) {
            const auto middle = first + (last - first) / 2;
            std::nth_element(first, middle, last);
            double sum = before;
            for (auto candidate = first; candidate < middle; ++candidate) sum += candidate->weight;
            if (sum >= goal)
                last = middle;
            else
                before = sum, first = middle;
        }
        return {first->word.id, before + first->weight};
    }

    void weigh(const Vector &scaled, int64_t word) {
        const Vector least = Vector{} + LEAST;
        store(&weight_[word], scaled < least ? Vector{} : exp(scaled));
        const Vector bucket = (scaled < least ? least : scaled) * ((BUCKETS - 1) / LEAST);
        const Integers numbers = __builtin_convertvector(bucket, Integers);
        std::memcpy(&bucket_[word], &numbers, sizeof numbers);
    }

    int64_t words_ = 0;
    const float *log_probs_ = nullptr;
    std::vector<float> weight_;
    std::vector<int32_t> bucket_;
    std::array<double, BUCKETS> sums_;  // of the weights in each bucket; buckets go from likely to unlikely words
    int last_ = 0;                      // last bucket with a weight
    std::vector<Candidate> candidates_;
};

}  // namespace

template <class Id>
void nucleus_words(int threads, int64_t rows, int64_t words, const float *log_probs, const float *uniforms,
                   float temperature, float top_p, Id *drawn) {
    share_work(threads, rows, [&](int64_t row) {
        thread_local Order order;
        drawn[row] = static_cast<Id>(order.draw(log_probs + row * words, words, temperature, top_p, uniforms[row]));
    });
}

template void nucleus_words(int, int64_t, int64_t, const float *, const float *, float, float, int32_t *);
template void nucleus_words(int, int64_t, int64_t, const float *, const float *, float, float, int64_t *);

}  // namespace vocabench
