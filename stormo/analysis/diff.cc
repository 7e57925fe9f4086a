#include <stormo/analysis/diff.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

namespace stormo::analysis {
namespace {

using Lines = std::vector<std::string>;

std::string first_of(const Lines& lines, int max_lines) {
  std::string out;
  const auto shown = std::min(lines.size(), static_cast<std::size_t>(std::max(max_lines, 0)));
  for (std::size_t i = 0; i < shown; ++i) out += lines[i] + "\n";
  if (shown < lines.size()) {
    out += "... and " + std::to_string(lines.size() - shown) + " more differences\n";
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    out.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return out;
}

std::string describe(const plan::Transfer& t) {
  return std::to_string(t.from) + ">" + std::to_string(t.to) +
         (t.how == plan::Combine::kReduce ? " +c" : " =c") + std::to_string(t.chunk);
}

void diff_round(std::size_t number, const plan::Round& a, const plan::Round& b, Lines& out) {
  if (a == b) return;
  const std::string place = "round " + std::to_string(number) + ": ";
  plan::Round sorted_a = a, sorted_b = b, only_a, only_b;
  std::ranges::sort(sorted_a);
  std::ranges::sort(sorted_b);
  std::ranges::set_difference(sorted_a, sorted_b, std::back_inserter(only_a));
  std::ranges::set_difference(sorted_b, sorted_a, std::back_inserter(only_b));
  for (const plan::Transfer& t : only_a) out.push_back("- " + place + describe(t));
  for (const plan::Transfer& t : only_b) out.push_back("+ " + place + describe(t));
  if (only_a.empty() && only_b.empty()) {
    out.push_back("~ " + place + "the same transfers in another order");
  }
}

/// Everything but the rounds.
std::string head_line(const plan::Schedule& s) {
  const plan::Schedule head{s.name, s.goal, s.ranks, s.chunks, {}};
  return std::string(split_lines(to_text(head)).front());
}

/// "action 3: update 0-1" without its number, which moves when something is inserted before it.
std::string_view without_number(std::string_view line) {
  for (const std::string_view kind : {"action ", "segment "}) {
    if (line.starts_with(kind)) return line.substr(std::min(line.find(": "), line.size()));
  }
  return line;
}

using Views = std::span<const std::string_view>;

bool same_line(std::string_view a, std::string_view b) {
  return without_number(a) == without_number(b);
}

/// keep[i][j] lines are common to a[i..] and b[j..]: the longest common subsequence, from the ends.
std::vector<std::vector<int>> common_lines(Views a, Views b) {
  std::vector<std::vector<int>> keep(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = a.size(); i-- > 0;) {
    for (std::size_t j = b.size(); j-- > 0;) {
      keep[i][j] =
          same_line(a[i], b[j]) ? keep[i + 1][j + 1] + 1 : std::max(keep[i + 1][j], keep[i][j + 1]);
    }
  }
  return keep;
}

Lines diff_lines(Views a, Views b) {
  while (!a.empty() && !b.empty() && same_line(a.front(), b.front())) {
    a = a.subspan(1);
    b = b.subspan(1);
  }
  while (!a.empty() && !b.empty() && same_line(a.back(), b.back())) {
    a = a.first(a.size() - 1);
    b = b.first(b.size() - 1);
  }
  Lines out;
  // beyond this the table costs more memory than a minimal answer is worth
  constexpr std::size_t kMaxTable = std::size_t{1} << 24;
  const bool small = a.size() <= kMaxTable / (b.size() + 1);
  const auto keep = small ? common_lines(a, b) : std::vector<std::vector<int>>{};
  for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (small && i < a.size() && j < b.size() && same_line(a[i], b[j])) {
      ++i, ++j;
    } else if (j == b.size() || (i < a.size() && (!small || keep[i + 1][j] >= keep[i][j + 1]))) {
      out.push_back("- " + std::string(a[i++]));
    } else {
      out.push_back("+ " + std::string(b[j++]));
    }
  }
  return out;
}

}  // namespace

std::string diff(const plan::Schedule& a, const plan::Schedule& b, int max_lines) {
  Lines out;
  if (const std::string old_head = head_line(a), head = head_line(b); old_head != head) {
    out.push_back("- " + old_head);
    out.push_back("+ " + head);
  }
  const std::size_t common = std::min(a.rounds.size(), b.rounds.size());
  for (std::size_t i = 0; i < common; ++i) diff_round(i, a.rounds[i], b.rounds[i], out);
  for (std::size_t i = common; i < a.rounds.size(); ++i) {
    out.push_back("- round " + std::to_string(i) + " (" + std::to_string(a.rounds[i].size()) +
                  " transfers)");
  }
  for (std::size_t i = common; i < b.rounds.size(); ++i) {
    out.push_back("+ round " + std::to_string(i) + " (" + std::to_string(b.rounds[i].size()) +
                  " transfers)");
  }
  return first_of(out, max_lines);
}

std::string diff(const plan::StepPlan& a, const plan::StepPlan& b, int max_lines) {
  if (a == b) return {};
  const std::string text_a = to_text(a), text_b = to_text(b);
  return first_of(diff_lines(split_lines(text_a), split_lines(text_b)), max_lines);
}

}  // namespace stormo::analysis
