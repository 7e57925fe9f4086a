#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// After each update every replica takes the mean of its parameters and those of its two neighbours
/// on the ring of replicas (decentralised SGD). Apply it after parameter_averaging(), whose
/// averages stay: they are what is evaluated and saved, and bring all replicas together now and
/// then. Fails with kBadPlan for a plan without replicas that diverge.
Pass mix();

}  // namespace stormo::parallel
