// The likeliest leaves of a binary tree, exactly or by beam search. All arrays are dense.

#pragma once

#include <cstdint>

#include "likeliest.h"

namespace vocabench {

// A full binary tree. nodes (count, dim): vectors of inner nodes, children before their parents, the root last.
// children (count, 2): left and right. Leaves have numbers below count + 1, and inner node j has number count + 1 + j.
// A path turns left at a node with probability sigma(node . vector). A tree without inner nodes has one leaf. If a
// child that a search reads does not come before its parent, the search throws `BadArgument`.
//
// Id: int32_t or int64_t.
template <class Id>
struct Tree {
    int64_t count, dim;
    const float *nodes;
    const Id *children;
};

// Finds the likeliest leaves for vectors (rows, dim), exactly.
template <class Id>
void likeliest_leaves(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows,
                      const Likeliest<Id> &likeliest);

// Finds the likeliest leaves among those that a beam search reaches, which follows the `width` likeliest paths level by
// level. The share is that of the nodes on these paths.
template <class Id>
void leaves_of_beam(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows, int64_t width,
                    const Likeliest<Id> &likeliest);

}  // namespace vocabench
