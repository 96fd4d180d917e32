// See `cluster_search.h`.
//
// No word is likelier than its cluster. So the likeliest few clusters of each vector are looked through, then those that
// are as likely as the k-th best word found, until there are none: all vectors together, each cluster read once a round.

#include "cluster_search.h"

#include <cmath>
#include <limits>

#include "tiles.h"

namespace {

constexpr int64_t FIRST = 6;  // clusters of each vector that are looked through first
constexpr int64_t NEXT = 4;   // times as many as before are next at most: the k-th best so far is far too low

struct Word {
    float value;
    int64_t id;
    bool operator<(const Word &other) const { return value > other.value || (value == other.value && id < other.id); }
};

// The k best of those that were put in, best first.
class Best {
  public:
    explicit Best(int64_t k) : k_(k) {}
    // The lowest value that may still get in; another of that value by its number.
    float least() const { return full() ? words_.back().value : -std::numeric_limits<float>::infinity(); }
    bool full() const { return static_cast<int64_t>(words_.size()) == k_; }
    void put(const Word &word) {
        if (full()) {
            if (!(word < words_.back())) return;
            words_.pop_back();
        }
        words_.insert(std::upper_bound(words_.begin(), words_.end(), word), word);
    }
    const std::vector<Word> &words() const { return words_; }

  private:
    int64_t k_;
    std::vector<Word> words_;
};

// One vector on the way.
struct State {
    Best best;
    std::vector<char> done;  // (C,) clusters looked through
    int64_t expanded = 0;
    std::vector<int32_t> next;  // clusters to look through in this round
    explicit State(int64_t k) : best(k) {}
};

// log P(word | cluster) of `size` scores, in place, and `added` on top.
void to_log_probabilities(float *scores, int64_t size, float added) {
    float highest = scores[0];
    for (int64_t s = 1; s < size; ++s) highest = std::max(highest, scores[s]);
    Vector sums = {};
    int64_t s = 0;
    for (; s + LANES <= size; s += LANES) sums += exp(load(scores + s) - highest);
    float total = sum(sums);
    for (; s < size; ++s) total += std::exp(scores[s] - highest);
    const float shift = added - highest - std::log(total);
    for (s = 0; s < size; ++s) scores[s] += shift;
}

// The clusters that a vector wants next, of those not looked through; false where these are too many.
bool choose(State &state, const float *log_cluster, int64_t count, int64_t most) {
    std::vector<int32_t> &next = state.next;
    next.clear();
    const float least = state.best.least();  // at equality a word of lower number may still come
    for (int64_t cluster = 0; cluster < count; ++cluster)
        if (log_cluster[cluster] >= least && !state.done[cluster]) next.push_back(cluster);
    const int64_t room = state.expanded ? NEXT * state.expanded : FIRST;
    if (static_cast<int64_t>(next.size()) > room) {
        const auto likelier = [&](int32_t one, int32_t other) { return log_cluster[one] > log_cluster[other]; };
        std::nth_element(next.begin(), next.begin() + room, next.end(), likelier);
        next.resize(room);
    }
    return state.expanded + static_cast<int64_t>(next.size()) <= most;
}

}  // namespace

template <class Id>
void likeliest_words(int threads, const Searched &searched, const float *words, const float *bias, const Id *ids_of,
                     const Clusters &clusters, int64_t k, int64_t most, float *values, Id *ids, Id *expanded) {
    const int64_t rows = searched.count, dim = clusters.dim, slots = clusters.slots;
    std::vector<State> states(rows, State(k));
    std::vector<int64_t> open(rows);
    for (int64_t row = 0; row < rows; ++row) open[row] = row, states[row].done.assign(clusters.count, 0);

    while (true) {
        std::vector<char> goes_on(open.size());
        share_work(threads, open.size(), [&](int64_t number) {
            State &state = states[open[number]];
            const bool few = choose(state, searched.log_cluster + open[number] * clusters.count, clusters.count, most);
            if (!few) state.expanded = 0;
            goes_on[number] = few && !state.next.empty();
        });
        int64_t kept = 0;
        for (size_t number = 0; number < open.size(); ++number)
            if (goes_on[number]) open[kept++] = open[number];
        open.resize(kept);
        if (open.empty()) break;

        // Pairs of a vector and a cluster, sorted by cluster.
        std::vector<int32_t> end(clusters.count, 0);
        for (int64_t row : open)
            for (int32_t cluster : states[row].next) ++end[cluster];
        for (int64_t cluster = 1; cluster < clusters.count; ++cluster) end[cluster] += end[cluster - 1];
        std::vector<int64_t> row_of(end.back());
        std::vector<int32_t> place(end);
        for (int64_t row : open)
            for (int32_t cluster : states[row].next) row_of[--place[cluster]] = row;

        Clusters wanted = clusters;
        wanted.end = end.data();
        const std::vector<Piece> pieces = pieces_of_tokens(wanted);
        std::vector<Best> found(row_of.size(), Best(k));
        share_work(threads, pieces.size(), [&](int64_t number) {
            const auto [cluster, first, count] = pieces[number];
            const int64_t start = clusters.start[cluster], size = clusters.size[cluster];
            std::vector<float> scores(count * slots);
            const Picked<const float> vectors{searched.vectors, dim, row_of.data() + first};
            dots(vectors, count, {words + start * dim, dim}, size, scores.data(), slots);
            for (int64_t pair = 0; pair < count; ++pair) {
                float *own = scores.data() + pair * slots;
                if (bias)
                    for (int64_t s = 0; s < size; ++s) own[s] += bias[start + s];
                const int64_t row = row_of[first + pair];
                to_log_probabilities(own, size, searched.log_cluster[row * clusters.count + cluster]);
                Best &best = found[first + pair];
                const float least = states[row].best.least();
                for (int64_t s = 0; s < size; ++s)
                    if (own[s] >= least && own[s] >= best.least()) best.put({own[s], ids_of[cluster * slots + s]});
            }
        });

        std::vector<std::vector<int64_t>> pairs_of(rows);
        for (size_t pair = 0; pair < row_of.size(); ++pair) pairs_of[row_of[pair]].push_back(pair);
        share_work(threads, open.size(), [&](int64_t number) {
            State &state = states[open[number]];
            for (int64_t pair : pairs_of[open[number]])
                for (const Word &word : found[pair].words()) state.best.put(word);
            for (int32_t cluster : state.next) state.done[cluster] = 1;
            state.expanded += state.next.size();
        });
    }

    for (int64_t row = 0; row < rows; ++row) {
        expanded[row] = states[row].best.full() ? states[row].expanded : 0;  // not full where numbers are not finite
        if (!expanded[row]) continue;
        for (int64_t place = 0; place < k; ++place) {
            values[row * k + place] = states[row].best.words()[place].value;
            ids[row * k + place] = states[row].best.words()[place].id;
        }
    }
}

template void likeliest_words(int, const Searched &, const float *, const float *, const int32_t *, const Clusters &,
                              int64_t, int64_t, float *, int32_t *, int32_t *);
template void likeliest_words(int, const Searched &, const float *, const float *, const int64_t *, const Clusters &,
                              int64_t, int64_t, float *, int64_t *, int64_t *);
