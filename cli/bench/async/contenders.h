#pragma once

#include <map>
#include <string>
#include <vector>

#include <cli/bench/async/options.h>
#include <cli/bench/async/table.h>
#include <cli/bench/contenders.h>
#include <cli/bench/site.h>

namespace stormo::cli {

/// A contender in one of the ways in which it may run, and what it measured.
struct AsyncContender {
  std::string name;
  Contender contender;
  std::size_t processes = 1;  ///< that print a record
  bool ours = false;          ///< must not fail
  SlowWorker slow;
  std::vector<std::vector<bench::WorkerRecord>> rounds;
};

/// What one model is measured with; strategies first.
struct AsyncField {
  std::vector<AsyncContender> contenders;
  std::map<std::string, std::string> absent;  ///< name and reason
};
Result<AsyncField> gather_async(const BenchSite& site, const StepJob& job,
                                const BenchAsyncOptions& options, const AsyncArguments& arguments);

}  // namespace stormo::cli
