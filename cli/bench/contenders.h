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
  std::string rendezvous;   ///< a file that must not exist when it starts; empty: none
  std::size_t records = 1;  ///< that it prints in a round
  bool required = false;    ///< must not fail
  std::string malloc = {};  ///< its setting, where both are tried
};

inline void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

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

/// Settings of the C library's malloc: as it is, and told to return no memory to the system.
inline constexpr const char* kDefaultMalloc = "default";
inline constexpr const char* kTunedMalloc = "tuned";
/// The words before a program that give it this setting.
std::vector<std::string> malloc_words(const std::string& malloc);

/// A statement that a Python script begins with, and the package that it needs.
struct PythonImport {
  std::string statement;
  std::string package;
};

/// The interpreter for a contender: `python`, or the active environment's, or python3. An error
/// when an import fails, with the package to install; `flag` names another interpreter.
Result<std::string> find_interpreter(const std::string& contender, const std::string& python,
                                     const std::vector<PythonImport>& imports,
                                     const std::string& flag);

/// kInvalidArgument when a script that a contender needs is not in the tools' folder.
Status check_scripts(const BenchSite& site, const std::string& contender,
                     const std::vector<std::string>& files);

/// A Python script of the tools' folder that uses torch.distributed, one process per rank.
struct TorchScript {
  std::string name;  ///< of the contender
  std::string file;  ///< called with a rendezvous file, then `arguments`
  std::vector<std::string> arguments;
  Speaker speaker = Speaker::kRankZero;
  std::vector<std::string> prefix = {};  ///< before the interpreter: env A=B
  std::vector<PythonImport> imports = {{"import torch.distributed", "torch"}};
  std::vector<std::string> modules = {};  ///< other scripts of the folder that it imports
};

/// It runs over the loopback interface or that of the hosts, with TCP's cubic congestion control
/// where that can be chosen. `python` as in find_interpreter().
Result<Contender> torch_contender(const BenchSite& site, const TorchScript& script,
                                  const std::string& python);

/// torch.distributed: "gloo", or "pytorch_stormo" for the backend of the package stormo-torch.
Result<Contender> torch_distributed_contender(const std::string& name, const BenchSite& site,
                                              const BenchOptions& options,
                                              const std::string& python);

}  // namespace stormo::cli
