// The likeliest leaves of a binary tree, with and without all of its nodes. All arrays are dense.

#pragma once

#include <cstdint>

#include "likeliest.h"

// A full binary tree. nodes (count, dim): vectors of inner nodes, children before their parents, the root last.
// children (count, 2): left and right; a leaf is its number, below count + 1, inner node j is count + 1 + j. A way from
// the root turns left at a node with probability sigma(node . vector).
//
// Id: int32_t or int64_t.
template <class Id>
struct Tree {
    int64_t count, dim;
    const float *nodes;
    const Id *children;
};

// Of vectors (rows, dim), exactly.
template <class Id>
void likeliest_leaves(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows,
                      const Likeliest<Id> &likeliest);

// Of vectors (rows, dim) those leaves that are reached by following the `width` likeliest ways, level by level; the
// share is that of the nodes on these.
template <class Id>
void leaves_of_beam(int threads, const Tree<Id> &tree, const float *vectors, int64_t rows, int64_t width,
                    const Likeliest<Id> &likeliest);
