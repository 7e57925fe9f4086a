#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <stormo/base/status.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/strads/block_program.h>
#include <stormo/strads/factorisation.h>
#include <stormo/strads/lasso.h>

namespace stormo::strads {

/// Read .npy files; kInvalidArgument for numbers that are not as they must be.
/// X [rows, columns] and y [rows]. Its lambda is 0.
Result<LassoProblem> read_regression(const std::string& x, const std::string& y);
/// Lines of row, column and value.
Result<Ratings> read_ratings(const std::string& path);

/// Writes W.npy and H.npy into a folder, which is made if its parent exists.
Status write_factors(const std::string& folder, std::int64_t rank, const BlockValues& values);

/// FNV-1a of numbers.
std::uint64_t hash_of(std::span<const double> values, std::uint64_t basis = 0xcbf29ce484222325ull);
/// Size and hash of data, to compare those of ranks. Cost: all data once.
std::vector<comm::Fact> identity_of(const LassoProblem& problem);
std::vector<comm::Fact> identity_of(const FactorisationProblem& problem);

}  // namespace stormo::strads
