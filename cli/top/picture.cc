#include <cli/top/picture.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

enum class Emphasis { kNone, kBold, kDim, kWarning, kFailure };

struct Line {
  std::string text;
  Emphasis emphasis = Emphasis::kNone;
};
using Lines = std::vector<Line>;

constexpr int kBarColumns = 20;
constexpr int kRoomForBar = 60;  // narrower windows have none
constexpr std::size_t kHostColumns = 24;
constexpr std::string_view kGap = "  ";
constexpr std::string_view kUnknown = "-";

/// At most so many cells of a terminal: scripts with wide characters begin here.
std::size_t cells_of(char32_t code) {
  constexpr char32_t kWide = 0x1100;
  return code < kWide ? 1 : 2;
}

/// The beginning that takes so many cells at most. `text` has nothing but printable characters.
std::string_view fitting(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0, cells = 0;
  while (bytes < text.size()) {
    const Character c = first_character(text.substr(bytes));
    cells += cells_of(c.code);
    if (cells > columns) break;
    bytes += std::max<std::size_t>(c.length, 1);
  }
  return text.substr(0, bytes);
}

std::size_t columns_of(std::string_view text) {
  std::size_t cells = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    cells += cells_of(c.code);
    text.remove_prefix(std::max<std::size_t>(c.length, 1));
  }
  return cells;
}

std::string seconds_text(double s) {
  constexpr double kLongest = 1e9;  // far beyond any run, and still within the range of Duration
  if (!std::isfinite(s) || s < 0) return "unknown";
  if (s == 0) return "0 s";
  return format_duration(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(s, kLongest))));
}

std::string rate_text(double per_s) {
  if (per_s < 1) return fmt::format("{:.3f}", per_s);
  return per_s < 100 ? fmt::format("{:.1f}", per_s) : fmt::format("{:.0f}", per_s);
}

std::string count_text(std::int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string bar_text(const JobStatus::Step& s) {
  const double done = s.steps > 0 ? static_cast<double>(s.step) / static_cast<double>(s.steps) : 0;
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kBarColumns);
  return fmt::format("[{:#<{}}{:.<{}}]", "", filled, "", kBarColumns - filled);
}

/// What belongs together: on one line where it fits, else on several.
void add_items(const std::vector<std::string>& items, std::size_t columns, Emphasis emphasis,
               Lines& lines) {
  std::string line;
  for (const std::string& item : items) {
    const bool fits = columns_of(line) + kGap.size() + columns_of(item) <= columns;
    if (!line.empty() && !fits) lines.push_back({std::exchange(line, ""), emphasis});
    line += (line.empty() ? "" : std::string(kGap)) + item;
  }
  if (!line.empty()) lines.push_back({line, emphasis});
}

std::string name_text(const JobStatus& job) {
  if (job.state == "failed") return job.recipe.empty() ? "failed" : job.recipe + ": failed";
  return job.recipe.empty() ? job.state : job.recipe + ": " + job.state;
}

std::string evaluation_text(const JobStatus::Evaluation& e) {
  std::string text = fmt::format("{} after step {}: loss {:.4f}", e.split, e.step, e.loss);
  if (e.accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *e.accuracy);
  return text;
}

void add_progress(const JobStatus& job, std::size_t columns, Lines& lines) {
  const JobStatus::Step& s = *job.step;
  std::vector<std::string> how_far;
  if (columns >= kRoomForBar) how_far.push_back(bar_text(s));
  how_far.push_back(fmt::format("step {} of {}", s.step, s.steps));
  how_far.push_back(fmt::format("epoch {:.2f}", s.epoch));
  how_far.push_back(seconds_text(s.age_s) + " ago");
  if (!job.has_ended()) how_far.push_back(seconds_text(s.remaining_s) + " left");
  add_items(how_far, columns, Emphasis::kNone, lines);
  add_items(
      {fmt::format("loss {:.4f}", s.loss), fmt::format("learning rate {:.3g}", s.learning_rate),
       rate_text(job.steps_per_s()) + " steps/s", rate_text(s.samples_per_s) + " samples/s",
       seconds_text(1 / job.steps_per_s()) + " a step"},
      columns, Emphasis::kNone, lines);
}

/// What there is to say of the whole job.
Lines head_of(const JobStatus& job, std::string_view address, std::string_view note,
              std::size_t columns) {
  Lines lines;
  add_items({printable_line(name_text(job)), printable_line(address),
             "for " + seconds_text(job.running_s)},
            columns, Emphasis::kBold, lines);
  if (!note.empty()) lines.push_back({printable_line(note), Emphasis::kWarning});
  if (job.started) {
    add_items({printable_line(job.strategy),
               count_text(job.num_ranks, "rank") + " of " + count_text(job.num_hosts, "host"),
               count_text(job.parameters, "parameter"), fmt::format("batch {}", job.global_batch)},
              columns, Emphasis::kNone, lines);
  }
  if (job.step) add_progress(job, columns, lines);
  for (const JobStatus::Evaluation& e : job.evaluations) {
    lines.push_back({printable_line(evaluation_text(e))});
  }
  const auto tell = [&](const std::string& prefix, const std::string& text, Emphasis emphasis) {
    if (!text.empty()) lines.push_back({prefix + printable_line(text), emphasis});
  };
  tell("warning: ", job.warning, Emphasis::kWarning);
  tell("warning: ", job.save_failed, Emphasis::kFailure);
  tell("failed: ", job.error, Emphasis::kFailure);
  return lines;
}

std::string lane_text(const RankStatus& r, Lane lane) {
  return r.seconds ? seconds_text((*r.seconds)[static_cast<std::size_t>(lane)])
                   : std::string(kUnknown);
}

std::string known(const std::string& text) {
  return text.empty() ? std::string(kUnknown) : printable_line(text);
}

/// "data 1.3x"
std::string slow_text(const RankStatus& r) {
  std::string out;
  for (const RankStatus::Slow& s : r.slow) {
    out += fmt::format("{}{} {:.1f}x", out.empty() ? "" : ", ", printable_line(s.part), s.ratio);
  }
  return out;
}

/// A column of the table. In a narrow window those of the highest `order` are left out.
struct Column {
  std::string head;
  int order = 0;
  std::vector<std::string> cells = {};
  std::size_t width = 0;
  bool shown = false;
};

std::vector<Column> columns_of_ranks(const JobStatus& job, const std::vector<int>& shown) {
  std::vector<Column> table = {{"rank", 0}, {"state", 4},  {"compute", 1}, {"wait", 2},
                               {"comm", 6}, {"data", 7},   {"memory", 3},  {"host", 5},
                               {"slow", 1}, {"slowest", 8}};
  for (const int rank : shown) {
    const RankStatus& r = job.ranks[static_cast<std::size_t>(rank)];
    const bool slowest = rank == job.slowest;
    const std::array<std::string, 10> cells = {
        fmt::format("{}{}", slowest ? "*" : " ", rank),
        known(r.state),
        lane_text(r, Lane::kCompute),
        lane_text(r, Lane::kWait),
        lane_text(r, Lane::kCommunication),
        lane_text(r, Lane::kData),
        r.memory_bytes ? format_bytes(*r.memory_bytes) : std::string(kUnknown),
        std::string(fitting(known(r.host), kHostColumns)),
        slow_text(r),
        slowest ? "slowest" : ""};
    for (std::size_t c = 0; c < table.size(); ++c) table[c].cells.push_back(cells[c]);
  }
  table.back().head.clear();
  return table;
}

/// Columns of which something is known, as many as fit.
void choose_columns(std::vector<Column>& table, std::size_t columns) {
  std::vector<Column*> by_order;
  for (Column& c : table) {
    c.width = columns_of(c.head);
    bool tells = false;
    for (const std::string& cell : c.cells) {
      c.width = std::max(c.width, columns_of(cell));
      tells = tells || (!cell.empty() && cell != kUnknown);
    }
    if (tells) by_order.push_back(&c);
  }
  std::ranges::sort(by_order, {}, &Column::order);
  std::size_t taken = 0;
  for (Column* c : by_order) {
    const std::size_t with = taken + (taken > 0 ? kGap.size() : 0) + c->width;
    if (with > columns && taken > 0) return;
    c->shown = true;
    taken = with;
  }
}

/// Those with the most to say first, where there is no room for all.
std::vector<int> ranks_to_show(const JobStatus& job, std::size_t room) {
  std::vector<int> ranks(job.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (ranks.size() <= room) return ranks;
  std::ranges::stable_sort(ranks, std::greater<>(), [&](int rank) {
    const RankStatus& r = job.ranks[static_cast<std::size_t>(rank)];
    return std::pair(r.state == "stopped", r.busy_seconds());
  });
  ranks.resize(room);
  return ranks;
}

/// At most `room` lines, which are two at least, with the head of the table.
void add_ranks(const JobStatus& job, std::size_t room, std::size_t columns, Lines& lines) {
  constexpr std::size_t kLeast = 2;
  const bool all = job.ranks.size() < room;
  const std::size_t rows = all ? job.ranks.size() : std::max<std::size_t>(1, room - kLeast);
  const std::vector<int> shown = ranks_to_show(job, rows);
  std::vector<Column> table = columns_of_ranks(job, shown);
  choose_columns(table, columns);
  const auto row = [&](const auto& cell_of) {
    std::string text;
    for (const Column& c : table) {
      if (!c.shown) continue;
      const std::string& cell = cell_of(c);
      text += (text.empty() ? "" : std::string(kGap)) + cell +
              std::string(c.width - columns_of(cell), ' ');
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  };
  lines.push_back(
      {row([](const Column& c) -> const std::string& { return c.head; }), Emphasis::kDim});
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const bool stopped = job.ranks[static_cast<std::size_t>(shown[i])].state == "stopped";
    lines.push_back({row([i](const Column& c) -> const std::string& { return c.cells[i]; }),
                     stopped                   ? Emphasis::kFailure
                     : shown[i] == job.slowest ? Emphasis::kWarning
                                               : Emphasis::kNone});
  }
  const std::size_t left_out = job.ranks.size() - shown.size();
  if (left_out > 0 && room > kLeast) {
    lines.push_back(
        {"and " + count_text(static_cast<std::int64_t>(left_out), "more rank"), Emphasis::kDim});
  }
}

std::string drawn(const Line& line, const Window& window) {
  const std::string_view text =
      fitting(line.text, static_cast<std::size_t>(std::max(window.columns, 1)));
  static constexpr std::array<const char*, 5> kCodes = {"", "1", "2", "33", "31"};
  const char* code = kCodes[static_cast<std::size_t>(line.emphasis)];
  if (!window.color || *code == '\0') return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace

std::vector<std::string> job_picture(const JobStatus& job, std::string_view address,
                                     std::string_view note, const Window& window) {
  const auto columns = static_cast<std::size_t>(std::max(window.columns, 1));
  Lines lines = head_of(job, address, note, columns);
  const std::size_t least = lines.size() + job.ranks.size() + 2;
  const std::size_t rows = window.rows > 0 ? static_cast<std::size_t>(window.rows) : least;
  if (!job.ranks.empty() && lines.size() + 2 < rows) {
    lines.push_back({""});
    add_ranks(job, rows - lines.size(), columns, lines);
  }
  if (lines.size() > rows) lines.resize(rows);
  std::vector<std::string> out;
  for (const Line& line : lines) out.push_back(drawn(line, window));
  return out;
}

}  // namespace stormo::cli
