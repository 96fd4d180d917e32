// See `tree_search.h`.
//
// No leaf is likelier than the path to a node above it. Therefore a best-first search follows the likeliest open path,
// until none is as likely as the k-th best leaf. Apart from nodes that are read together, no search can visit fewer
// nodes. If these would be many, all nodes are processed in the order of memory instead.

#include "tree_search.h"

#include "best.h"
#include "checks.h"
#include "log_sigmoid.h"
#include "products_with.h"
#include "strips.h"
#include "threads.h"
#include "tiles.h"

namespace vocabench {

namespace {

constexpr int AT_ONCE = 4;  // nodes read together, so that their cache misses overlap
// A best-first search may visit FEW nodes, or 1 / OF_ALL of them, or OF_LEAF per leaf up to 1 / AT_MOST_OF_ALL of them.
// This is a small part of a large tree, or enough to find that many leaves in most trained trees.
constexpr int64_t FEW = 256, OF_ALL = 64, OF_LEAF = 16, AT_MOST_OF_ALL = 8;
constexpr int64_t NODES = 512;        // nodes whose scores are one piece of work
constexpr int64_t SCORES = 16 << 20;  // most scores in memory

// A path from the root.
struct Way {
    float value;   // log-probability
    int64_t node;  // the last node, numbered as in `children`
    bool operator<(const Way &other) const { return value < other.value; }
};

// Returns a child of inner node `parent`, which must come before it.
template <class Id>
int64_t child_of(const Tree<Id> &tree, int64_t parent, int side) {
    const int64_t child = tree.children[2 * parent + side], last = tree.count + parent;
    if (child < 0 || child > last) require_between("children", child, 0, last);
    return child;
}

// Calls go(left, right) with the continuations of up to AT_ONCE ways.
template <class Id, class Go>
void descend(const Tree<Id> &tree, const float *vector, const Way *ways, int64_t count, Go go) {
    const float *nodes[AT_ONCE];
    float scores[AT_ONCE];
    const auto inner = [&](int64_t way) { return ways[way].node - tree.count - 1; };
    for (int64_t way = 0; way < count; ++way) nodes[way] = tree.nodes + inner(way) * tree.dim;
    with_constant<AT_ONCE>(count, [&](auto size) { products_with<size()>(vector, nodes, tree.dim, scores); });
    for (int64_t way = 0; way < count; ++way) {
        const Turns<float> turns = log_turns(scores[way]);
        const int64_t left = child_of(tree, inner(way), 0), right = child_of(tree, inner(way), 1);
        go(Way{ways[way].value + turns.left, left}, Way{ways[way].value + turns.right, right});
    }
}

// Searches for the k best leaves of a vector. Returns false if that takes more than about `most` nodes.
template <class Id>
bool search(const Tree<Id> &tree, const float *vector, int64_t most, Best &best, int64_t &visited) {
    std::vector<Way> open, next;  // `open` is a heap
    const auto reaches = [&] {
        return !open.empty() && open.front().value >= best.least();
    };  // of equal values the lower id wins
    const auto meet = [&](const Way &way) {
        if (!(way.value >= best.least())) return;
        if (way.node <= tree.count) return best.put({way.value, way.node});
        const float *node = tree.nodes + (way.node - tree.count - 1) * tree.dim;
        for (int64_t d = 0; d < tree.dim; d += LINE) __builtin_prefetch(node + d);
        open.push_back(way);
        std::push_heap(open.begin(), open.end());
    };
    meet({0, 2 * tree.count});
    while (reaches()) {
        if (visited >= most) return false;
        next.clear();
        while (next.size() < AT_ONCE && reaches()) {
            std::pop_heap(open.begin(), open.end());
            next.push_back(open.back());
            open.pop_back();
        }
        visited += next.size();
        descend(tree, vector, next.data(), next.size(), [&](const Way &left, const Way &right) {
            meet(left);
            meet(right);
        });
    }
    return true;
}

// Calls meet(leaf, value) for all leaves. turns_of(node) is called for all nodes, parents first.
//
// Number: float for one vector, or Vector for one vector per lane.
template <class Number, class Id, class TurnsOf, class Meet>
void meet_all(const Tree<Id> &tree, TurnsOf turns_of, Meet meet) {
    const int64_t leaves = tree.count + 1;
    std::vector<Number> way(tree.count, Number{});            // log-probability of the path to each node
    for (int64_t node = tree.count - 1; node >= 0; --node) {  // parents first
        const Number here = way[node];
        const Turns<Number> turns = turns_of(node);
        const auto go = [&](int64_t child, const Number &value) {
            if (child >= leaves)
                way[child - leaves] = value;
            else
                meet(child, value);
        };
        go(child_of(tree, node, 0), here + turns.left);
        go(child_of(tree, node, 1), here + turns.right);
    }
}

// Finds the best leaves of a vector from its scores with all nodes.
template <class Id>
void best_of_all(const Tree<Id> &tree, const float *scores, Best &best) {
    float left[LANES], right[LANES];
    int64_t first = tree.count;  // first of the nodes whose turns are in `left` and `right`
    const auto turns_of = [&](int64_t node) {
        if (node < first) {
            first = std::max<int64_t>(node + 1 - LANES, 0);
            float padded[LANES] = {};
            std::copy(scores + first, scores + node + 1, padded);
            const Turns<Vector> turns = log_turns(load(padded));
            store(left, turns.left);
            store(right, turns.right);
        }
        return Turns<float>{left[node - first], right[node - first]};
    };
    float least = best.least();
    meet_all<float>(tree, turns_of, [&](int64_t leaf, float value) {
        if (!(value >= least)) return;
        best.put({value, leaf});
        least = best.least();
    });
}

// The same for up to LANES vectors. The scores of a node are side by side, `places` from those of the next node.
template <class Id>
void best_of_all(const Tree<Id> &tree, const float *scores, int64_t places, std::vector<Best> &best) {
    Vector least = Vector{} + std::numeric_limits<float>::infinity();  // stays so in lanes without a vector
    for (size_t lane = 0; lane < best.size(); ++lane) least[lane] = best[lane].least();
    const auto turns_of = [&](int64_t node) { return log_turns(load(scores + node * places)); };
    meet_all<Vector>(tree, turns_of, [&](int64_t leaf, const Vector &value) {
        for (unsigned mask = where_at_least(value, least); mask; mask &= mask - 1) {
            const int lane = __builtin_ctz(mask);
            best[lane].put({value[lane], leaf});
            least[lane] = best[lane].least();
        }
    });
}

// Finds the likeliest leaves of vectors by computing all nodes.
template <class Id>
void take_all(int threads, const Tree<Id> &tree, Picked<const float> vectors, int64_t count,
              const Likeliest<Id> &likeliest) {
    const bool are_laid = count >= LAID;
    const Strips across = laid(vectors, are_laid ? count : 0);
    const int64_t places = are_laid ? across.dim() : tree.count;
    const std::unique_ptr<float[]> scores(new float[are_laid ? tree.count * places : count * places]);
    share_work(threads, (tree.count + NODES - 1) / NODES, [&](int64_t piece) {
        const int64_t node = piece * NODES, size = std::min(NODES, tree.count - node);
        const Dense<const float> nodes{tree.nodes + node * tree.dim, tree.dim};
        if (are_laid)
            products(nodes, size, across, {scores.get() + node * places, places});
        else
            dots(vectors, count, nodes, size, scores.get() + node, places);
    });
    const int64_t together = are_laid ? LANES : 1;
    share_work(threads, (count + together - 1) / together, [&](int64_t group) {
        const int64_t first = group * together, size = std::min(together, count - first);
        std::vector<Best> best(size, Best(likeliest.k));
        if (are_laid)
            best_of_all(tree, scores.get() + first, places, best);
        else
            best_of_all(tree, scores.get() + first * places, best[0]);
        for (int64_t vector = 0; vector < size; ++vector)
            write(best[vector], 1, likeliest.from(vectors.index[first + vector]));
    });
}

// Returns the share of the nodes of a tree that were visited; 1 of a tree without inner nodes.
float share_of(int64_t visited, int64_t nodes) { return nodes ? static_cast<float>(visited) / nodes : 1; }

}  // namespace

template <class Id>
void likeliest_leaves(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows,
                      const Likeliest<Id> &likeliest) {
    const int64_t for_leaves = std::min(OF_LEAF * likeliest.k, tree.count / AT_MOST_OF_ALL);
    const int64_t most = std::max({FEW, tree.count / OF_ALL, for_leaves});
    std::vector<char> is_open(rows, 0);
    share_work(threads, rows, [&](int64_t row) {
        Best best(likeliest.k);
        int64_t visited = 0;
        is_open[row] = !search(tree, vectors + row * tree.dim, most, best, visited);
        write(best, share_of(visited, tree.count), likeliest.from(row));
    });
    std::vector<int64_t> open;
    for (int64_t row = 0; row < rows; ++row)
        if (is_open[row]) open.push_back(row);
    const int64_t together = std::max<int64_t>(1, std::min(TOKENS, SCORES / std::max<int64_t>(1, tree.count)));
    for (int64_t first = 0, count = open.size(); first < count; first += together) {
        const Picked<const float> batch{vectors, tree.dim, open.data() + first};
        take_all(threads, tree, batch, std::min(together, count - first), likeliest);
    }
}

template <class Id>
void leaves_of_beam(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows, int64_t width,
                    const Likeliest<Id> &likeliest) {
    share_work(threads, rows, [&](int64_t row) {
        std::vector<Way> kept{{0, 2 * tree.count}}, inner, left, right;
        int64_t visited = 0;
        const auto is_leaf = [&](const Way &way) { return way.node <= tree.count; };
        const auto add = [](std::vector<Way> &ways, const Way &way) {
            if (way.value >= std::numeric_limits<float>::lowest()) ways.push_back(way);
        };
        while (!std::all_of(kept.begin(), kept.end(), is_leaf)) {
            const auto first_inner = std::stable_partition(kept.begin(), kept.end(), is_leaf);
            inner.assign(first_inner, kept.end());
            kept.erase(first_inner, kept.end());
            left.clear(), right.clear();
            visited += inner.size();
            for (size_t first = 0; first < inner.size(); first += AT_ONCE) {
                const int64_t count = std::min<int64_t>(AT_ONCE, inner.size() - first);
                descend(tree, vectors + row * tree.dim, &inner[first], count,
                        [&](const Way &to_left, const Way &to_right) {
                            add(left, to_left);
                            add(right, to_right);
                        });
            }
            kept.insert(kept.end(), left.begin(), left.end());
            kept.insert(kept.end(), right.begin(), right.end());
            std::stable_sort(kept.begin(), kept.end(), [](const Way &a, const Way &b) { return b < a; });
            if (static_cast<int64_t>(kept.size()) > width) kept.resize(width);
        }
        Best best(likeliest.k);
        for (const Way &way : kept) best.put({way.value, way.node});
        write(best, share_of(visited, tree.count), likeliest.from(row));
    });
}

template void likeliest_leaves(int, const Tree<int32_t> &, const float *, int64_t, const Likeliest<int32_t> &);
template void likeliest_leaves(int, const Tree<int64_t> &, const float *, int64_t, const Likeliest<int64_t> &);
template void leaves_of_beam(int, const Tree<int32_t> &, const float *, int64_t, int64_t, const Likeliest<int32_t> &);
template void leaves_of_beam(int, const Tree<int64_t> &, const float *, int64_t, int64_t, const Likeliest<int64_t> &);

}  // namespace vocabench
