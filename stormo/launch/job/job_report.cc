#include <stormo/launch/job/job_report.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include <stormo/base/printable.h>

namespace stormo::launch {
namespace {

using nlohmann::json;

/// Refused connections that are shown one by one; a flood must not bury the ranks' output.
constexpr int kShownRefusals = 100;
/// Losses that are listed again at the end.
constexpr std::size_t kShownLosses = 32;

std::string to_line(const json& record) {
  return record.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void JobReport::started() {
  output_.record(to_line({{"event", "start"},
                          {"ranks", plan_.ranks},
                          {"hosts", plan_.hosts.size()},
                          {"program", plan_.hosts.front().program}}));
}

void JobReport::exited(Rank rank, int code) {
  output_.record(to_line({{"event", "exit"}, {"rank", rank}, {"code", code}}));
}

void JobReport::signalled(Rank rank, int signal) {
  output_.record(to_line({{"event", "exit"}, {"rank", rank}, {"signal", signal}}));
}

void JobReport::host_leaves(int cross_rank) {
  output_.message(fmt::format("host {} is taken away: its ranks leave the job",
                              plan_.hosts[static_cast<std::size_t>(cross_rank)].host));
}

void JobReport::note(const protocol::RankLost& lost) {
  output_.record(to_line({{"event", "lost"}, {"what", lost.text}}));
  std::string text = lost.text + "; the job goes on without it";
  if (lost.wait > Duration::zero()) {
    text += fmt::format(", and starts it again in {} s",
                        std::chrono::ceil<std::chrono::seconds>(lost.wait).count());
  }
  output_.message(text);
  lost_.push_back(lost.text);
}

void JobReport::note(const protocol::RankStarted& started) {
  output_.record(to_line({{"event", "started_again"},
                          {"rank", started.rank},
                          {"pid", started.pid},
                          {"incarnation", started.incarnation}}));
  output_.message(started.text);
}

void JobReport::note(const protocol::RankLeft& left) {
  output_.record(to_line({{"event", "left"}, {"rank", left.rank}}));
  output_.message(left.text + "; the job goes on without it");
}

void JobReport::refused(std::string_view text) {
  if (++refusals_ > kShownRefusals) return;
  output_.message(text);
  if (refusals_ == kShownRefusals) output_.message("further refused connections are not shown");
}

void JobReport::resized(int before, int ranks) {
  output_.record(to_line({{"event", "resize"}, {"before", before}, {"ranks", ranks}}));
  output_.message(fmt::format("the job is to have {} ranks instead of {}", ranks, before));
}

void JobReport::register_ended(std::size_t parts) {
  output_.message(
      parts > 1 ? "the process of this host's part of the register of members has ended: the "
                  "job goes on, but not after the loss of another part"
                : "the process of the register of members has ended: the job goes on, but not "
                  "after the loss of a rank");
}

void JobReport::say_lost() {
  if (lost_.empty()) return;
  const std::string how_many =
      plan_.elastic
          ? fmt::format("ranks were lost {} before the end",
                        lost_.size() == 1 ? "once" : fmt::format("{} times", lost_.size()))
          : fmt::format("{} of {} ranks {} lost before the end", lost_.size(), plan_.ranks,
                        lost_.size() == 1 ? "was" : "were");
  const auto shown = std::min(lost_.size(), kShownLosses);
  const auto end = lost_.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string text = fmt::format("{}:\n  {}", how_many, fmt::join(lost_.begin(), end, "\n  "));
  if (shown < lost_.size()) text += fmt::format("\n  and {} more", lost_.size() - shown);
  output_.message(text);
}

void JobReport::ended(int exit_code, const std::string& report) {
  output_.record(to_line({{"event", "end"},
                          {"exit_code", exit_code},
                          {"report", message_text(report)},
                          {"lost", lost_}}));
}

}  // namespace stormo::launch
