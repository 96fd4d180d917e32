// See `tree_search.h`.
//
// No leaf is likelier than the way to any node above it. So the likeliest way is followed first, then the likeliest of
// those that are left, until none is as likely as the k-th best leaf found: no search can look at fewer nodes. Where
// these would be many, all nodes are taken in the order of memory instead.

#include "tree_search.h"

#include "best.h"
#include "log_sigmoid.h"
#include "products_with.h"
#include "threads.h"
#include "tiles.h"

namespace {

constexpr int AT_ONCE = 4;            // nodes that are read together, so that memory is waited for once
constexpr int64_t FEW = 256;          // nodes that a search may look at in any tree
constexpr int64_t SHARE = 16;         // of all nodes, that it may look at in a large one
constexpr int64_t NODES = 512;        // whose products are one piece of work
constexpr int64_t SCORES = 16 << 20;  // that are kept at most

// A way from the root.
struct Way {
    float value;
    int64_t node;  // where it has come to, numbered as `children` are
    bool operator<(const Way &other) const { return value < other.value; }
};

// go(left, right): the ways on from each of `count`, AT_ONCE at most.
template <class Id, class Go>
void descend(const Tree<Id> &tree, const float *vector, const Way *ways, int64_t count, Go go) {
    const float *nodes[AT_ONCE];
    float scores[AT_ONCE];
    const auto inner = [&](int64_t way) { return ways[way].node - tree.count - 1; };
    for (int64_t way = 0; way < count; ++way) nodes[way] = tree.nodes + inner(way) * tree.dim;
    with_constant<AT_ONCE>(count, [&](auto some) { products_with<some()>(vector, nodes, tree.dim, scores); });
    for (int64_t way = 0; way < count; ++way) {
        const Turns<float> turns = log_turns(scores[way]);
        const Id *children = tree.children + 2 * inner(way);
        go(Way{ways[way].value + turns.left, children[0]}, Way{ways[way].value + turns.right, children[1]});
    }
}

// Whether the k best leaves of a vector were found among so few nodes as are looked at one by one.
template <class Id>
bool search(const Tree<Id> &tree, const float *vector, Best &best, int64_t &looked_at) {
    const int64_t most = std::max(FEW, tree.count / SHARE);
    std::vector<Way> open{{0, 2 * tree.count}}, next;  // a heap
    const auto reaches = [&] { return !open.empty() && open.front().value >= best.least(); };  // equals by number
    const auto meet = [&](const Way &way) {
        if (!(way.value >= best.least())) return;
        if (way.node <= tree.count) return best.put({way.value, way.node});
        const float *node = tree.nodes + (way.node - tree.count - 1) * tree.dim;
        for (int64_t d = 0; d < tree.dim; d += LINE) __builtin_prefetch(node + d);
        open.push_back(way);
        std::push_heap(open.begin(), open.end());
    };
    while (reaches()) {
        if (looked_at >= most) return false;
        next.clear();
        while (next.size() < AT_ONCE && reaches()) {
            std::pop_heap(open.begin(), open.end());
            next.push_back(open.back());
            open.pop_back();
        }
        looked_at += next.size();
        descend(tree, vector, next.data(), next.size(), [&](const Way &left, const Way &right) {
            meet(left);
            meet(right);
        });
    }
    return true;
}

// The best leaves of a vector from its products with all nodes.
template <class Id>
void best_of_all(const Tree<Id> &tree, const float *scores, Best &best) {
    const int64_t leaves = tree.count + 1;
    std::vector<float> way(tree.count, 0);  // to each node
    Turns<float> turns[LANES];
    for (int64_t end = tree.count; end > 0; end -= LANES) {  // parents first
        const int64_t first = std::max<int64_t>(end - LANES, 0);
        Vector some = {};
        std::copy(scores + first, scores + end, reinterpret_cast<float *>(&some));
        const Turns<Vector> all = log_turns(some);
        for (int lane = 0; lane < LANES; ++lane) turns[lane] = {all.left[lane], all.right[lane]};
        for (int64_t node = end - 1; node >= first; --node) {
            const auto meet = [&](int64_t child, float turn) {
                const float value = way[node] + turn;
                if (child >= leaves)
                    way[child - leaves] = value;
                else if (value >= best.least())
                    best.put({value, child});
            };
            meet(tree.children[2 * node], turns[node - first].left);
            meet(tree.children[2 * node + 1], turns[node - first].right);
        }
    }
}

}  // namespace

template <class Id>
void likeliest_leaves(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows,
                      const Likeliest<Id> &likeliest) {
    std::vector<char> is_open(rows, 0);
    share_work(threads, rows, [&](int64_t row) {
        Best best(likeliest.k);
        int64_t looked_at = 0;
        is_open[row] = !search(tree, vectors + row * tree.dim, best, looked_at);
        write(best, static_cast<float>(looked_at) / tree.count, likeliest.from(row));
    });

    std::vector<int64_t> open;
    for (int64_t row = 0; row < rows; ++row)
        if (is_open[row]) open.push_back(row);
    const int64_t most = std::max<int64_t>(1, std::min(TOKENS, SCORES / tree.count));
    std::vector<float> scores(std::min<int64_t>(most, open.size()) * tree.count);
    for (size_t first = 0; first < open.size(); first += most) {
        const int64_t count = std::min<int64_t>(most, open.size() - first);
        const Picked<const float> some{vectors, tree.dim, open.data() + first};
        share_work(threads, (tree.count + NODES - 1) / NODES, [&](int64_t piece) {
            const int64_t node = piece * NODES, size = std::min(NODES, tree.count - node);
            dots(some, count, {tree.nodes + node * tree.dim, tree.dim}, size, scores.data() + node, tree.count);
        });
        share_work(threads, count, [&](int64_t vector) {
            Best best(likeliest.k);
            best_of_all(tree, scores.data() + vector * tree.count, best);
            write(best, 1, likeliest.from(open[first + vector]));
        });
    }
}

template <class Id>
void leaves_of_beam(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows, int64_t width,
                    const Likeliest<Id> &likeliest) {
    share_work(threads, rows, [&](int64_t row) {
        std::vector<Way> kept{{0, 2 * tree.count}}, inner, left, right;
        int64_t looked_at = 0;
        const auto is_leaf = [&](const Way &way) { return way.node <= tree.count; };
        const auto add = [](std::vector<Way> &ways, const Way &way) {
            if (way.value >= std::numeric_limits<float>::lowest()) ways.push_back(way);
        };
        while (!std::all_of(kept.begin(), kept.end(), is_leaf)) {
            const auto first_inner = std::stable_partition(kept.begin(), kept.end(), is_leaf);
            inner.assign(first_inner, kept.end());
            kept.erase(first_inner, kept.end());
            left.clear(), right.clear();
            looked_at += inner.size();
            for (size_t first = 0; first < inner.size(); first += AT_ONCE) {
                const int64_t count = std::min<int64_t>(AT_ONCE, inner.size() - first);
                descend(tree, vectors + row * tree.dim, &inner[first], count, [&](const Way &one, const Way &other) {
                    add(left, one);
                    add(right, other);
                });
            }
            kept.insert(kept.end(), left.begin(), left.end());
            kept.insert(kept.end(), right.begin(), right.end());
            std::stable_sort(kept.begin(), kept.end(), [](const Way &one, const Way &other) { return other < one; });
            if (static_cast<int64_t>(kept.size()) > width) kept.resize(width);
        }
        Best best(likeliest.k);
        for (const Way &way : kept) best.put({way.value, way.node});
        write(best, static_cast<float>(looked_at) / tree.count, likeliest.from(row));
    });
}

template void likeliest_leaves(int, const Tree<int32_t> &, const float *, int64_t, const Likeliest<int32_t> &);
template void likeliest_leaves(int, const Tree<int64_t> &, const float *, int64_t, const Likeliest<int64_t> &);
template void leaves_of_beam(int, const Tree<int32_t> &, const float *, int64_t, int64_t, const Likeliest<int32_t> &);
template void leaves_of_beam(int, const Tree<int64_t> &, const float *, int64_t, int64_t, const Likeliest<int64_t> &);
