#include <stormo/observe/progress.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include <stormo/base/printable.h>
#include <stormo/base/units.h>
#include <stormo/observe/data_text.h>
#include <stormo/observe/sharding_table.h>

namespace stormo::observe {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[2K";
constexpr std::size_t kBarWidth = 20;
constexpr std::size_t kSmallestBar = 8;
constexpr std::size_t kAroundBar = 3;  // "[", "] "

std::string seconds(double s) {
  if (!std::isfinite(s) || s < 0) return "unknown";
  // Far beyond any run, and still within the range of Duration.
  s = std::min(s, 1e9);
  return format_duration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)));
}

std::string rate(double samples_per_s) {
  return samples_per_s < 100 ? fmt::format("{:.1f} samples/s", samples_per_s)
                             : fmt::format("{:.0f} samples/s", samples_per_s);
}

std::string percent(double part) { return fmt::format("{:.2f} %", 100 * part); }

std::string shares(const std::array<double, kNumLanes>& share) {
  static constexpr std::string_view kNames[kNumLanes] = {"compute", "comm", "wait", "data"};
  std::string text;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    text += fmt::format("{}{} {:.0f}%", lane == 0 ? "" : " ", kNames[lane], 100 * share[lane]);
  }
  return text;
}

/// "  slowest rank 1 on hostb"
std::string slowest_text(const StepRecord& r) {
  if (r.slowest < 0) return "";
  return fmt::format("  slowest rank {}{}", r.slowest,
                     r.slowest_host.empty() ? "" : " on " + printable_line(r.slowest_host));
}

std::string bar(std::int64_t step, std::int64_t steps, std::size_t width) {
  const double done = steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 0;
  const auto filled =
      static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
  return fmt::format("[{:#<{}}{:.<{}}] ", "", filled, "", width - filled);
}

std::string step_text(const StepRecord& r) {
  const int width = static_cast<int>(std::to_string(r.steps).size());
  return fmt::format("step {:>{}}/{}  loss {:.4f}  {}  ETA {}", r.step, width, r.steps, r.loss,
                     rate(r.samples_per_s), r.eta_s == 0 ? "0 s" : seconds(r.eta_s));
}

/// As much as fits: the step, then the bar, then the shares, then more of the bar.
std::string live_text(const StepRecord& r, std::size_t width) {
  std::string line = step_text(r);
  const std::string share = "  " + shares(r.share);
  const std::string slowest = slowest_text(r);
  if (line.size() + share.size() + kSmallestBar + kAroundBar <= width) line += share;
  if (line.size() + slowest.size() + kSmallestBar + kAroundBar <= width) line += slowest;
  if (line.size() + kSmallestBar + kAroundBar <= width) {
    line = bar(r.step, r.steps, std::min(kBarWidth, width - line.size() - kAroundBar)) + line;
  }
  if (line.size() > width) line.resize(width);
  return line;
}

std::string indented(std::string_view text) {
  std::string out = "  | ";
  for (const char c : printable(text)) {
    out += c;
    if (c == '\n') out += "  | ";
  }
  return out;
}

std::string save_failed_text(const SaveFailedRecord& r) {
  return fmt::format(
      "warning: the checkpoint after step {} failed ({} in a row, {} end the run): {}", r.step,
      r.failures, r.max_failures, r.error);
}

/// "rank 3 on host b is slow: data takes 1.3 times as long as expected, ..."; a line for each of
/// the first ones.
std::string slow_ranks_text(const SlowRanksRecord& r) {
  constexpr std::size_t kMostLines = 3;
  std::string out;
  for (const SlowRanksRecord::Change& c :
       std::span(r.changes).first(std::min(r.changes.size(), kMostLines))) {
    out += fmt::format("rank {}{}", c.rank,
                       c.host.empty() ? "" : " on host " + printable_line(c.host));
    if (!c.begins) {
      out += fmt::format(" is as fast as the others again: {}\n", c.part);
      continue;
    }
    out += fmt::format(
        " is slow: {} takes {}{:.1f} times as long as that of the others, {} a step; without it a "
        "step would take {:.2f} of its time\n",
        c.part, c.ratio < 100 ? "" : "at least ", c.ratio, seconds(c.seconds), c.without);
  }
  if (r.changes.size() > kMostLines) {
    out += fmt::format("and {} more changes: see --json\n", r.changes.size() - kMostLines);
  }
  return out;
}

/// "mean 1.03, max 5 (worker 0: 1.02, worker 1: 1.04)"
std::string staleness_text(const std::vector<StalenessRecord>& workers) {
  double sum = 0, gradients = 0;
  std::int64_t max = 0;
  std::string each;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    const auto count = static_cast<double>(workers[w].gradients);
    sum += workers[w].mean * count;
    gradients += count;
    max = std::max(max, workers[w].max);
    each += fmt::format("{}worker {}: {:.2f}", w == 0 ? "" : ", ", w, workers[w].mean);
  }
  return fmt::format("mean {:.2f}, max {} ({})", gradients > 0 ? sum / gradients : 0, max, each);
}

/// "worker 0: 2 times, came back; worker 3: once, did not come back"
std::string lost_workers_text(const std::vector<LostWorkerRecord>& workers) {
  std::string out;
  for (const LostWorkerRecord& w : workers) {
    out += fmt::format("{}worker {}: {}, {}", out.empty() ? "" : "; ", w.worker,
                       w.lost == 1 ? "once" : fmt::format("{} times", w.lost),
                       w.came_back < w.lost ? "did not come back" : "came back");
  }
  return out;
}

/// "125 of parameters, every 8 steps; distance before them: mean 0.12, max 0.31"
std::string population_text(const PopulationRecord& r) {
  std::string out = fmt::format("the best is member {}; {} exchanges", r.best, r.exchanges);
  if (std::ranges::any_of(r.taken, [](std::int64_t n) { return n > 0; })) {
    out += fmt::format(", in which members took another model {} times", fmt::join(r.taken, ", "));
  }
  if (r.max_age > 0) {
    out += fmt::format("; copies were {:.1f} steps old when they were used, at most {}", r.mean_age,
                       r.max_age);
  }
  return out;
}

std::string averaging_text(const AveragingRecord& r) {
  return fmt::format(
      "{} of parameters, every {} step{}; distance before them: mean {:.3g}, max {:.3g}",
      r.averages, r.period, r.period == 1 ? "" : "s", r.mean_distance, r.max_distance);
}

}  // namespace

TerminalStyle terminal_style(bool is_terminal, int columns, const char* no_color,
                             const char* term) {
  TerminalStyle style;
  if (columns > 0) style.columns = columns;
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  style.live = is_terminal && !dumb;
  style.color = style.live && (no_color == nullptr || *no_color == '\0');
  return style;
}

std::string TextObserver::bold(const std::string& text) const {
  return style_.color ? fmt::format("\x1b[1m{}\x1b[0m", text) : text;
}

std::string TextObserver::dim(const std::string& text) const {
  return style_.color ? fmt::format("\x1b[2m{}\x1b[0m", text) : text;
}

void TextObserver::print_line(const std::string& line) {
  out_ << fmt::format("{}{}\n", live_line_shown_ ? kEraseLine : "", line) << std::flush;
  live_line_shown_ = false;
}

void TextObserver::print_lines(const std::string& lines) {
  print_line(lines.substr(0, lines.size() - 1));
}

void TextObserver::on_start(const StartRecord& r) {
  print_line(fmt::format("{}: {} parameters, {} on {} rank{} of {} host{}, batch {}, seed {}",
                         bold(printable_line(r.recipe)), r.parameters, r.strategy, r.ranks,
                         r.ranks == 1 ? "" : "s", r.hosts, r.hosts == 1 ? "" : "s", r.global_batch,
                         r.seed));
  if (!r.data.empty()) print_lines(data_text(r.data));
  if (r.first_step > 0) {
    print_line(fmt::format("resumed after step {} of {}", r.first_step, r.steps));
  }
  for (const ChangeRecord& c : r.changed) {
    print_line(printable_line(fmt::format("  {} was {}, is now {}", c.key, c.before, c.now)));
  }
  if (r.checkpoint.empty()) print_line("nothing is saved: no checkpoint.directory is given");
}

void TextObserver::on_sharding(const ShardingRecord& r) { print_lines(sharding_table(r)); }

void TextObserver::on_step(const StepRecord& r) {
  if (style_.live) return draw_line(r);
  print_line(step_text(r) + "  " + shares(r.share) + slowest_text(r));
}

void TextObserver::on_progress(const StepRecord& r) {
  if (style_.live) draw_line(r);
}

void TextObserver::draw_line(const StepRecord& r) {
  // One column stays free: a line that fills the terminal exactly would scroll it.
  const auto width = static_cast<std::size_t>(std::max(1, style_.columns - 1));
  out_ << fmt::format("{}{}", kEraseLine, live_text(r, width)) << std::flush;
  live_line_shown_ = true;
}

void TextObserver::on_eval(const EvalRecord& r) {
  std::string line =
      fmt::format("{} after step {}: loss {:.4f}", printable_line(r.split), r.step, r.loss);
  if (r.accuracy) line += ", accuracy " + percent(*r.accuracy);
  if (r.mae) line += fmt::format(", mean absolute error {:.4g}", *r.mae);
  if (r.r2) line += fmt::format(", R2 {:.4f}", *r.r2);
  if (r.f1) line += fmt::format(", mean F1 {:.4f}", *r.f1);
  if (r.auc) line += fmt::format(", AUC {:.4f}", *r.auc);
  if (!r.member_losses.empty()) {
    line += fmt::format("; of members {:.4f}", fmt::join(r.member_losses, " "));
  }
  if (r.churn) line += fmt::format(", which differ in {} of the samples", percent(*r.churn));
  print_line(line + dim(fmt::format(" ({} samples)", r.samples)));
  if (!r.confusion.empty()) print_lines(confusion_text(r));
}

void TextObserver::on_save_failed(const SaveFailedRecord& r) { print_line(save_failed_text(r)); }

void TextObserver::on_slow_ranks(const SlowRanksRecord& r) { print_lines(slow_ranks_text(r)); }

void TextObserver::on_warning(const WarningRecord& r) { print_line("warning: " + r.message); }

void WarningObserver::on_warning(const WarningRecord& r) {
  out_ << "warning: " + r.message + "\n" << std::flush;
}

void WarningObserver::on_slow_ranks(const SlowRanksRecord& r) {
  out_ << slow_ranks_text(r) << std::flush;
}

void WarningObserver::on_save_failed(const SaveFailedRecord& r) {
  out_ << save_failed_text(r) + "\n" << std::flush;
}

void TextObserver::on_end(const EndRecord& r) {
  print_line("");
  print_line(fmt::format("{} {} steps, {} samples in {} ({}) on {} rank{}",
                         bold(r.interrupted ? "interrupted after" : "done:"), r.steps, r.samples,
                         seconds(r.wall_s), rate(r.samples_per_s), r.ranks,
                         r.ranks == 1 ? "" : "s"));
  const auto row = [&](std::string_view name, const std::string& value) {
    print_line(fmt::format("  {:<16} {}", name, value));
  };
  if (r.train_loss_steps > 0) {
    row("train loss",
        fmt::format(
            "{:.4f} (mean of the last {})", r.train_loss,
            r.train_loss_steps == 1 ? "step" : fmt::format("{} steps", r.train_loss_steps)));
  }
  if (r.skipped_steps > 0) row("skipped steps", std::to_string(r.skipped_steps));
  if (r.val_loss) row("validation loss", bold(fmt::format("{:.4f}", *r.val_loss)));
  if (r.test_accuracy) row("test accuracy", bold(percent(*r.test_accuracy)));
  if (r.best_step > 0) {
    const std::string value =
        r.best_metric == "accuracy" ? percent(r.best_value) : fmt::format("{:.4f}", r.best_value);
    row("best " + r.best_metric,
        fmt::format("{} after step {}{}", value, r.best_step,
                    r.stopped_early ? ", no better since: stopped early" : ""));
  }
  if (r.converged) row("converged", "further steps would change nothing");
  if (!r.staleness.empty()) row("staleness", staleness_text(r.staleness));
  if (!r.lost_workers.empty()) row("lost workers", lost_workers_text(r.lost_workers));
  if (r.averaging) row("averages", averaging_text(*r.averaging));
  if (r.population) row("population", population_text(*r.population));
  row("weights hash", r.weights_hash);
  if (!r.checkpoint.empty()) row("checkpoint", printable_line(r.checkpoint));
  if (!r.no_sample.empty()) row("sample", r.no_sample);
  if (r.interrupted && !r.checkpoint.empty()) row("to continue", "the same command with --resume");
  if (!r.sample.empty()) {
    print_line("");
    print_line(dim("a sample of what the model writes"));
    print_line(indented(r.sample));
  }
}

void TextObserver::on_error(const ErrorRecord& r) {
  print_line("stormo train: " + message_text(r.message));
}

}  // namespace stormo::observe
