#pragma once

#include <cstdint>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Cuts the all-reduces of whole gradients into buckets of about `bytes`, of one element type each,
/// the last parameters first: backward reaches them first. Buckets are asynchronous: each is sent
/// as soon as its gradients are in place, while backward goes on, and awaited by what needs it. The
/// weights of the average are added up once, before the last backward. Fails with kInvalidArgument
/// for bytes < 1; a plan that counts already, or reduces nothing so, stays as it is. Paper: S. Li
/// et al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020.
Pass bucket(std::int64_t bytes);

}  // namespace stormo::parallel
