#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <stormo/c10d/backend.h>

// Backends that do one operation wrong, to see which test notices: mutations_test.py.
namespace stormo::c10d {

using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

struct Mutation {
  std::string operation;  ///< of c10d::Backend, e.g. "allreduce"
  std::string kind;       ///< "no_data", "gloo" or "reversed"
};

/// What STORMO_TEST_MUTATION says, e.g. "allreduce:gloo".
std::optional<Mutation> mutation();

/// A backend that does everything on `right`, but the operation of the mutation on `wrong`, and not
/// at all if that is null.
BackendPtr mutant(const Mutation& mutation, BackendPtr right, BackendPtr wrong);

/// PyTorch's ProcessGroupGloo of ranks that are threads of this process.
std::vector<BackendPtr> gloo_backends(int size, std::chrono::milliseconds timeout);

}  // namespace stormo::c10d
