#pragma once

#include <string>
#include <vector>

#include <cli/bench/child.h>
#include <cli/bench/options.h>
#include <cli/bench/site.h>

namespace stormo::cli {

/// One system of a comparison: how to start it for one round.
struct Contender {
  std::string name;
  ChildCommand command;
  std::string rendezvous;  ///< a file that must not exist when it starts; empty: none
};

/// Whether hosts that are reached so are network namespaces of this machine: `tools/hosts` or plain
/// `ip netns`.
bool enters_namespaces(const std::string& remote_shell);

Contender stormo_contender(const BenchSite& site, const BenchOptions& options,
                           const BenchArguments& arguments);

/// What the programs of opponents take: operation, type, seconds and pause, then sizes.
std::vector<std::string> arguments_of_bench(const BenchOptions& options);

/// Interfaces are listed as "bridge,eth0"; the ranks in namespaces have the last.
std::string last_interface(const std::string& list);

/// Whose standard output a contender is read from.
enum class Speaker { kRankZero, kEveryRank /* lines after "[rank] " */ };

/// `stormo run` as it starts the ranks of the site, up to the program.
std::vector<std::string> run_words(const BenchSite& site, Speaker speaker);

/// A Python script of the tools' folder that uses torch.distributed, one process per rank.
struct TorchScript {
  std::string name;  ///< of the contender
  std::string file;  ///< called with a rendezvous file, then `arguments`
  std::vector<std::string> arguments;
  Speaker speaker = Speaker::kRankZero;
  std::vector<std::string> prefix = {};  ///< before the interpreter: env A=B
};

/// It runs over the loopback interface or that of the hosts, with TCP's cubic congestion control
/// where that can be chosen. `python` empty: the active environment's, or python3. As above.
Result<Contender> torch_contender(const BenchSite& site, const TorchScript& script,
                                  const std::string& python);

/// Gloo by torch.distributed. As above.
Result<Contender> gloo_contender(const BenchSite& site, const BenchOptions& options,
                                 const std::string& python);

}  // namespace stormo::cli
