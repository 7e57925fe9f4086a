#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// How often a worker of parameter servers exchanges with them, in steps.
struct ExchangePeriods {
  int fetch = 1;
  int push = 1;
  /// Workers train by themselves, each with an optimizer of its own, and servers average.
  bool averages = false;
  /// Whether what workers pull changes by what they push alone.
  bool every_step() const { return !averages && fetch == 1 && push == 1; }
  bool operator==(const ExchangePeriods&) const = default;
};

/// Data parallelism with parameter servers: the trainable parameters and their optimizer state lie
/// on servers, which are no ranks of the mesh. Every rank of the new mesh axis "dp" is a worker. It
/// pulls the parameters, computes its local batch, and pushes its own gradients. No action is a
/// collective, so the plan has no agree. Which version a pull gives, whether it waits for it, and
/// when a push is applied, the policy of the servers decides. Fails with kInvalidArgument for
/// workers < 1, with kBadPlan when the mesh has axes already, but for those below.
///
/// A worker may be the stages and slices that pipeline() and tensor_parallel() have cut it into:
/// then "dp" is the outermost axis, and each rank pulls and pushes the parameters of its own
/// segments, or its slices of them. One that several stages read is the first one's, which sends
/// the others the values that it has pulled, and pushes the sum of their gradients. One that is not
/// split is that of the first rank of its stage, which does the same. The ranks of a worker agree
/// on the end of the step. kInvalidArgument with `ranks` or `every` above 1, kBadPlan when steps
/// overlap.
///
/// With `every` above 1 a worker trains a copy of its own in between (Downpour SGD): it pulls in
/// every fetch-th step, updates its copy in every step, and pushes the sum of its gradients in
/// every push-th step. kInvalidArgument for numbers below 1.
///
/// With `every.averages` it trains its copy with an optimizer of its own, and in place of a push an
/// average gives the servers its parameters and the state of its optimizer. The next pull brings
/// their averages over the workers. kInvalidArgument for workers of several ranks.
///
/// With `ranks` above 1 a worker is as many neighbouring ranks, the axis plan::kWorkerAxis. Each
/// computes its part of the worker's batch. The first one pulls and sends the others what it got,
/// they average their gradients, and the first one pushes the average. The ranks of a worker agree
/// on the end of the step.
Pass parameter_server(int workers, ExchangePeriods every = {}, int ranks = 1);

/// After parameter_server(), for servers behind connections: the pull and the push become
/// asynchronous ones of each segment, which overlap with computing. A segment waits for its own
/// parameters only, and its gradients are sent when they are complete. Goes with by_segment().
Pass overlap_exchange();

}  // namespace stormo::parallel
