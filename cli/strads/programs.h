#pragma once

#include <cli/strads/options.h>
#include <stormo/base/status.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

// Arguments that were checked. False: the updates diverged.

/// All workers in this process, in virtual time.
Result<bool> simulate_lasso(const LassoArguments& a);
Result<bool> simulate_factorise(const FactoriseArguments& a);
/// This process is a rank.
Result<bool> run_lasso_rank(const transport::Rendezvous& place, const LassoArguments& a);
Result<bool> run_factorise_rank(const transport::Rendezvous& place, const FactoriseArguments& a);

}  // namespace stormo::cli
