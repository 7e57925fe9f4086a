#pragma once

#include <string_view>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// The topology of gossip without steps in common.
inline constexpr std::string_view kPairs = "pairs";

/// Asynchronous decentralised SGD (AD-PSGD): replicas train by themselves, and two of them take the
/// mean of their parameters at any time. Such a mean belongs to no step that several ranks do, so
/// it is no action. A step that closes ends with the average of all, as of parameter_averaging().
Pass pairs(int ranks);

}  // namespace stormo::parallel
