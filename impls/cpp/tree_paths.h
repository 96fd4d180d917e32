// What training needs of a binary tree: each example's path from the root to its leaf. All arrays are dense.

#pragma once

#include <cstdint>

// vectors (count, dim) of examples, and of each node and turn of its path: index, sign (count, depth), 1 where it turns
// left, -1 right, 0 beyond its end. place (count,): where its leaf stands among all, from left to right.
struct Paths {
    int64_t count, dim, depth;
    const float *vectors;
    const int32_t *index, *sign, *place;
};

// losses (count,): the sums over paths of -log sigma(sign * node . vector), for nodes (any, dim). dscores (count, depth)
// and dvectors (count, dim): their derivatives by the products node . vector, and by the vectors.
void path_losses(int threads, const Paths &paths, const float *nodes, float *losses, float *dscores, float *dvectors);

// dnodes (nodes, dim): what derivatives by the products, dscores (count, depth), give by the nodes.
void path_gradients(int threads, const Paths &paths, const float *dscores, int64_t nodes, float *dnodes);
