#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Data parallelism with parameter servers: the trainable parameters and their optimizer state lie
/// on servers, which are no ranks of the mesh. Every rank of the new mesh axis "dp" is a worker. It
/// pulls the parameters, computes its local batch, and pushes its own gradients. No action is a
/// collective, so the plan has no agree. Which version a pull gives, whether it waits for it, and
/// when a push is applied, the policy of the servers decides. Fails with kInvalidArgument for
/// workers < 1, with kBadPlan when the mesh has axes already.
Pass parameter_server(int workers);

}  // namespace stormo::parallel
