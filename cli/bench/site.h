#pragma once

#include <memory>
#include <string>
#include <utility>

#include <cli/bench/options.h>
#include <stormo/base/status.h>
#include <stormo/base/temporary_folder.h>

namespace stormo::cli {

/// Where the contenders run, and what is there.
struct BenchSite {
  std::string program;  ///< `stormo`
  std::string tools;    ///< folder of openmpi_bench and others, torch_bench.py, hosts
  std::string scratch;  ///< a folder for files of this run
  std::string path;     ///< PATH
  int ranks = 1;
  int hosts = 1;
  int cores = 1;            ///< of this machine
  bool namespaces = false;  ///< the hosts share this machine's cores
  bool root = false;
  LaunchFlags launch;  ///< with hosts as the launcher takes them
};

/// A site with what exists only for its sake: a folder and, where they are made, hosts. Both go
/// with this object.
class BenchPlace {
 public:
  /// `namespaces` > 0: makes so many hosts.
  static Result<std::unique_ptr<BenchPlace>> create(const BenchFlags& flags, int namespaces);
  BenchPlace(const BenchPlace&) = delete;
  ~BenchPlace();

  BenchSite site;

 private:
  explicit BenchPlace(TemporaryFolder scratch) : scratch_(std::move(scratch)) {}
  /// By tools/hosts: network namespaces. kInvalidArgument where this machine does not allow that.
  Status make_hosts(int count, const BenchFlags& flags);
  std::string hosts_tool() const { return site.tools + "/hosts"; }

  TemporaryFolder scratch_;
  std::string made_;  ///< name of the hosts that were made; empty: none
};

}  // namespace stormo::cli
