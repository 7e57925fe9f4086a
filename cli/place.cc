#include <cli/place.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/text.h>

namespace stormo::cli {
namespace {

constexpr const char* kSecret = "STORMO_SECRET_FD";

bool is_foreign(const Result<transport::Rendezvous>& place) {
  return !place.ok() || (place->source != "none" && place->source != "stormo");
}

/// "-n 2 -H a:1,b:1", as they were written.
std::string words_of(const LaunchFlags& flags) {
  std::string words = flags.ranks ? fmt::format("-n {}", *flags.ranks) : "";
  if (!flags.hosts.empty()) words += (words.empty() ? "-H " : " -H ") + flags.hosts;
  return words;
}

/// Flags that only the process that starts ranks can follow.
Status check_foreign(const LaunchFlags& flags, const transport::Rendezvous& place) {
  std::vector<std::string> useless;
  if (flags.bind != "auto") useless.push_back("--bind " + flags.bind);
  if (flags.remote_shell != LaunchFlags().remote_shell) useless.emplace_back("--remote-shell");
  if (useless.empty()) return {};
  return invalid_argument(fmt::format(
      "{}: only where Stormo starts the ranks, but {} has started this process ({}); leave it out, "
      "or say it to {}",
      fmt::join(useless, ", "), place.source, launch::placing_variables(place.source),
      place.source));
}

/// Whether it has come to an elastic job that began with fewer ranks, as -n and -H say.
bool came_later(const transport::Rendezvous& place, int ranks_at_first,
                const launch::EnvironmentReader& read) {
  const auto start = number_in<int>(read("STORMO_INCARNATION").value_or(""));
  return place.source == "stormo" && start.value_or(1) > 1 && place.rank >= ranks_at_first;
}

Result<transport::Rendezvous> against_flags(const LaunchFlags& flags, transport::Rendezvous place,
                                            const launch::EnvironmentReader& read) {
  if (place.source == "none" || words_of(flags).empty()) return place;
  std::vector<std::string> errors;
  const auto shares = place_of_ranks(flags, errors);
  const int wanted = shares.back().first_rank + shares.back().ranks;
  // ranks that Stormo has started get the words of the command that did
  const bool same_hosts = flags.hosts.empty() || place.source == "stormo";
  const bool same_ranks = wanted == place.size || came_later(place, wanted, read);
  if (errors.empty() && same_ranks && same_hosts) return place;
  if (place.size == 1) return transport::Rendezvous();
  return invalid_argument(fmt::format(
      "{}: but this process is rank {} of {} already, which {} has started ({}). Leave out -n and "
      "-H to be this rank, or unset these variables to start ranks here",
      words_of(flags), place.rank, place.size, place.source,
      launch::placing_variables(place.source)));
}

Result<transport::Rendezvous> place_of_process(const LaunchFlags& flags,
                                               const launch::EnvironmentReader& read) {
  auto place = read_place(flags, read);
  if (is_foreign(place)) {
    for (const auto& [name, value] : variables_of(flags))
      ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  return place;
}

}  // namespace

Result<transport::Rendezvous> read_place(const LaunchFlags& flags,
                                         const launch::EnvironmentReader& read) {
  auto place = launch::read_environment(read);
  const bool launched = read("STORMO_RANK").has_value();  // the flags are in the environment
  if (is_foreign(place) && !launched) {
    const auto given = variables_of(flags);
    place = launch::read_environment([&](std::string_view name) -> std::optional<std::string> {
      const auto said = std::ranges::find(given, name, [](const auto& g) { return g.first; });
      return said != given.end() ? said->second : read(name);
    });
    STORMO_RETURN_IF_ERROR(place.status());
    if (place->size > 1) STORMO_RETURN_IF_ERROR(check_foreign(flags, *place));
  }
  STORMO_RETURN_IF_ERROR(place.status());
  return against_flags(flags, std::move(*place), read);
}

Result<transport::Rendezvous> place_in_job(const LaunchFlags& flags) {
  return place_of_process(flags, [](std::string_view name) -> std::optional<std::string> {
    if (name == kSecret) return std::nullopt;
    return launch::process_environment()(name);
  });
}

Result<transport::Rendezvous> take_place_in_job(const LaunchFlags& flags) {
  return place_of_process(flags, launch::process_environment());
}

}  // namespace stormo::cli
