#pragma once

#include <cstdint>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Divides the all-reduces of whole gradients into buckets of about `bytes`, of one element type
/// each. The last parameters come first, because backward reaches them first. Buckets are
/// asynchronous: each starts as soon as its gradients are complete, during backward, and the first
/// action that needs its result waits for it. The weights of the average are added up once, before
/// the last backward. Fails with kInvalidArgument for bytes < 1. A plan that has a `sum_weights`
/// already, or no such all-reduce, is not changed. Paper: S. Li et al., "PyTorch Distributed:
/// experiences on accelerating data parallel training", VLDB 2020.
Pass bucket(std::int64_t bytes);

}  // namespace stormo::parallel
