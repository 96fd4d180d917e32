// See `cluster_search.h`.
//
// No word is likelier than its cluster. So the likeliest few clusters of each vector are looked through, then those that
// are as likely as the k-th best word found, the likeliest of them first: all vectors together, each cluster read once a
// round, in three rounds at most. To read a cluster takes as long as to multiply it with a few vectors: in the first round
// those that are read for some vectors are looked through for all others that may well want them later. Where most
// clusters are about as likely as the likeliest, the k-th best word is less likely than nearly all of them, and they are
// looked through at once. Each thread keeps the best words that it has found of each vector, so that few others get as far
// as being compared with them one by one.

#include "cluster_search.h"

#include <cmath>
#include <limits>

#include "best.h"
#include "log_softmax.h"
#include "own_room.h"
#include "strips.h"
#include "threads.h"
#include "tiles.h"

namespace {

constexpr int64_t FIRST = 6;        // clusters of each vector that are looked through first
constexpr int64_t NEXT = 24;        // that are next at most: the k-th best of so few words is far too low
constexpr int64_t LIKELY = 10;      // the k-th best, at most 1 / k likely, may well be so many times less
constexpr int64_t WORDS = 64;       // whose vectors stay in the cache next to a core while strips of vectors go by
constexpr int64_t TOGETHER = 1024;  // vectors at most: what is kept of each and each cluster takes memory

struct Scores {};  // of a visit, for which a thread has room

// One vector on the way.
struct State {
    Best best;
    std::vector<char> taken;  // (C,) clusters looked through, or among the next
    int64_t expanded = 0;
    std::vector<int32_t> next;  // clusters to look through in this round
    State(int64_t k, int64_t clusters) : best(k), taken(clusters, 0) { next.reserve(clusters); }

    void take(int32_t cluster) {
        taken[cluster] = 1;
        next.push_back(cluster);
    }
};

// Some vectors, and the words of a cluster that is to be looked through for them.
template <class Id>
struct Visit {
    Picked<const float> vectors;
    int64_t count;
    Dense<const float> words;
    int64_t size;
    const float *bias;         // (size,) or null
    const Id *ids;             // (size,)
    const float *log_cluster;  // (count,) log P(cluster)
    const float *least;        // (count,) values that are lower are not wanted
    Best *best;                // where words go, by vector

    Best &best_of(int64_t vector) const { return best[vectors.place[vector]]; }
    float least_of(int64_t vector) const { return std::max(least[vector], best_of(vector).least()); }
};

// work(number) for those of `count` values that are at least `least()`, which may grow on the way.
template <class Least, class Work>
void each_at_least(const float *values, int64_t count, Least least, Work work) {
    Vector lowest = Vector{} + least();
    int64_t number = 0;
    for (; number + LANES <= count; number += LANES)
        for (unsigned wanted = where_at_least(load(values + number), lowest); wanted; wanted &= wanted - 1) {
            work(number + __builtin_ctz(wanted));
            lowest = Vector{} + least();
        }
    for (; number < count; ++number)
        if (values[number] >= least()) work(number);
}

// Vector by vector: of few.
template <class Id>
void by_vector(const Visit<Id> &visit) {
    float *const scores = own_room<Scores>(visit.count * visit.size);
    dots(visit.vectors, visit.count, visit.words, visit.size, scores, visit.size);
    for (int64_t vector = 0; vector < visit.count; ++vector) {
        float *own = scores + vector * visit.size;
        if (visit.bias)
            for (int64_t s = 0; s < visit.size; ++s) own[s] += visit.bias[s];
        log_softmax(own, visit.size, visit.log_cluster[vector]);
        Best &best = visit.best_of(vector);
        const float least = visit.least_of(vector);
        each_at_least(own, visit.size, [&] { return std::max(least, best.least()); },
                      [&](int64_t s) { best.put({own[s], visit.ids[s]}); });
    }
}

// Side by side, a vector a lane: no sum across lanes, and each cluster's words in strips that stay in the nearest cache.
template <class Id>
void side_by_side(const Visit<Id> &visit, const Strips &across) {
    const int64_t places = across.dim();
    float *const scores = own_room<Scores>(visit.size * places);
    for (int64_t s = 0; s < visit.size; s += WORDS)
        products(visit.words.from(s), std::min(WORDS, visit.size - s), across, {scores + s * places, places});
    for (int64_t first = 0; first < visit.count; first += LANES) {
        const int lanes = std::min<int64_t>(LANES, visit.count - first);
        const Dense<float> own{scores + first, places};
        const Vector highest = add_biases(own, visit.size, visit.bias);
        Vector total = {}, shift = {}, least = Vector{} + std::numeric_limits<float>::infinity();
        for (int64_t s = 0; s < visit.size; ++s) total += exp(load(own[s]) - highest);
        for (int lane = 0; lane < lanes; ++lane) {
            shift[lane] = visit.log_cluster[first + lane] - highest[lane] - std::log(total[lane]);
            least[lane] = visit.least_of(first + lane);
        }
        for (int64_t s = 0; s < visit.size; ++s) {
            const Vector value = load(own[s]) + shift;
            for (unsigned wanted = where_at_least(value, least); wanted; wanted &= wanted - 1) {
                const int lane = __builtin_ctz(wanted);
                Best &best = visit.best_of(first + lane);
                best.put({value[lane], visit.ids[s]});
                least[lane] = std::max(least[lane], best.least());
            }
        }
    }
}

// Whether most of `count` clusters are half as likely as the likeliest.
bool is_flat(const float *log_cluster, int64_t count) {
    const float half = *std::max_element(log_cluster, log_cluster + count) - std::log(2.0f);
    return 2 * std::count_if(log_cluster, log_cluster + count, [=](float each) { return each >= half; }) > count;
}

// The clusters that a vector wants in a round, of those not looked through.
void choose(State &state, int64_t round, const float *log_cluster, int64_t count) {
    state.next.clear();
    const float least = state.best.least();  // at equality a word of lower number may still come
    const int64_t room = round == 0 && !is_flat(log_cluster, count) ? FIRST : round == 1 ? NEXT : count;
    Best likeliest(room);
    each_at_least(log_cluster, count, [&] { return std::max(least, likeliest.least()); }, [&](int64_t cluster) {
        if (state.taken[cluster]) return;
        if (room < count)
            likeliest.put({log_cluster[cluster], cluster});
        else
            state.take(cluster);
    });
    for (const Word &cluster : likeliest.words()) state.take(cluster.id);
}

// Further clusters that it may well want: of those that are read for others.
void join(State &state, const std::vector<char> &is_read, float likely, const float *log_cluster) {
    for (size_t cluster = 0; cluster < is_read.size(); ++cluster)
        if (is_read[cluster] && log_cluster[cluster] >= likely && !state.taken[cluster]) state.take(cluster);
}

// As `likeliest_words`, of vectors that are few enough.
template <class Id>
void likeliest_of_few(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                      const Likeliest<Id> &likeliest) {
    const Clusters &clusters = words.clusters;
    const int64_t rows = searched.count, dim = clusters.dim, slots = clusters.slots, k = likeliest.k;
    std::vector<State> states;
    states.reserve(rows);
    std::vector<std::vector<Best>> found(threads);  // by each thread in a round
    std::vector<int64_t> open(rows);
    for (int64_t row = 0; row < rows; ++row) {
        states.emplace_back(k, clusters.count);
        for (std::vector<Best> &best : found) best.emplace_back(k);
        open[row] = row;
    }

    const auto of_open = [&](auto work) {
        share_work(threads, open.size(), [&](int64_t number) {
            const int64_t row = open[number];
            work(states[row], searched.log_cluster + row * clusters.count);
        });
    };
    for (int64_t round = 0;; ++round) {
        of_open([&](State &state, const float *log_cluster) { choose(state, round, log_cluster, clusters.count); });
        if (round == 0) {
            std::vector<char> is_read(clusters.count, 0);
            for (const State &state : states)
                for (int32_t cluster : state.next) is_read[cluster] = 1;
            const float likely = -std::log(static_cast<float>(LIKELY * k));
            of_open([&](State &state, const float *log_cluster) { join(state, is_read, likely, log_cluster); });
        }
        open.erase(std::remove_if(open.begin(), open.end(), [&](int64_t row) { return states[row].next.empty(); }),
                   open.end());
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

        // Where each cluster has all vectors, as of flat distributions, they are laid once for all clusters.
        const int64_t of_each = row_of.size() == open.size() * clusters.count ? open.size() : 0;
        std::vector<Strips> for_all;
        for (int64_t first = 0; first < of_each; first += TOKENS)
            for_all.push_back(laid({searched.vectors, dim, row_of.data() + first}, std::min(TOKENS, of_each - first)));
        const auto look_through = [&](const Piece &piece, int64_t thread) {
            const auto [cluster, first, count] = piece;
            const int64_t start = clusters.start[cluster];
            if (!clusters.size[cluster]) return;  // no word of it is found
            float log_cluster[TOKENS], least[TOKENS];
            for (int64_t pair = 0; pair < count; ++pair) {
                const int64_t row = row_of[first + pair];
                log_cluster[pair] = searched.log_cluster[row * clusters.count + cluster];
                least[pair] = states[row].best.least();
            }
            const Picked<const float> vectors{searched.vectors, dim, row_of.data() + first};
            const Visit<Id> visit{vectors, count, {words.words + start * dim, dim}, clusters.size[cluster],
                                  words.bias ? words.bias + start : nullptr, words.ids_of + cluster * slots,
                                  log_cluster, least, found[thread].data()};
            if (count < LAID)
                by_vector(visit);
            else if (of_each)
                side_by_side(visit, for_all[first % of_each / TOKENS]);
            else
                side_by_side(visit, laid_in_own_room(vectors, count));
        };
        std::atomic<size_t> next{0};
        share_work(threads, threads, [&](int64_t thread) {
            for (size_t piece; (piece = next++) < pieces.size();) look_through(pieces[piece], thread);
        });

        share_work(threads, open.size(), [&](int64_t number) {
            State &state = states[open[number]];
            for (std::vector<Best> &best : found) state.best.take(best[open[number]]);
            state.expanded += state.next.size();
        });
    }

    for (int64_t row = 0; row < rows; ++row) {
        const State &state = states[row];
        write(state.best, static_cast<float>(state.expanded) / clusters.count, likeliest.from(row));
    }
}

}  // namespace

template <class Id>
void likeliest_words(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                     const Likeliest<Id> &found) {
    for (int64_t first = 0; first < searched.count; first += TOGETHER) {
        const Searched some{std::min(TOGETHER, searched.count - first), searched.vectors + first * words.clusters.dim,
                            searched.log_cluster + first * words.clusters.count};
        likeliest_of_few(threads, some, words, found.from(first));
    }
}

template void likeliest_words(int, const Searched &, const ClusteredWords<int32_t> &, const Likeliest<int32_t> &);
template void likeliest_words(int, const Searched &, const ClusteredWords<int64_t> &, const Likeliest<int64_t> &);
