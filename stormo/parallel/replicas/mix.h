#pragma once

#include <string>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// After each update every replica takes the weighted mean of its parameters and those of its
/// neighbours in a topology (plan::mixing_of()). Apply it after parameter_averaging(), whose
/// averages stay: they are what is evaluated and saved, and bring all replicas together now and
/// then. Fails with kBadPlan for a plan without replicas that diverge.
Pass mix(const std::string& topology = "ring");

struct Gossip {
  std::string topology = "ring";
  /// Replicas estimate the mean of all gradients, so that different samples on each rank do not
  /// draw them apart. Takes gradients that are neither scaled nor clipped.
  bool tracks_gradients = false;
};

/// Decentralised SGD: as mix(), but replicas send the parameters with which a step begins, while
/// they compute its gradients with them, and the update begins with the means: x_i becomes the sum
/// of W_ij x_j, minus the update by gradients at x_i. With tracking of gradients that update takes
/// y_i, which becomes the sum of W_ij y_j, plus the gradients, minus those of the step before.
Pass gossip(const Gossip& how);

}  // namespace stormo::parallel
