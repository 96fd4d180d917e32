// Training of a binary tree: losses and gradients along the path of each example. All arrays are dense.

#pragma once

#include <cstdint>

namespace vocabench {

// vectors (count, dim) of examples. index, sign (count, depth): the nodes of each path, and its turns: 1 left, -1
// right, 0 beyond its end. place (count,): position of its leaf among all leaves, from left to right.
struct Paths {
    int64_t count, dim, depth;
    const float *vectors;
    const int32_t *index, *sign, *place;
};

// Computes losses (count,), the sums over paths of -log sigma(sign * node . vector) for nodes (node_count, dim), and
// their gradients with respect to the products node . vector, dscores (count, depth), and to the vectors, dvectors
// (count, dim). The loss of a path with an index outside of the nodes is NaN, and its gradients are 0.
void path_losses(int threads, const Paths &paths, const float *nodes, int64_t node_count, float *losses, float *dscores,
                 float *dvectors);

// Computes dnodes (nodes, dim), the gradients with respect to the nodes, from those with respect to the products,
// dscores (count, depth). A path with an index outside of the nodes contributes nothing.
void path_gradients(int threads, const Paths &paths, const float *dscores, int64_t nodes, float *dnodes);

}  // namespace vocabench
