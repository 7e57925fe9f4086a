#include <stormo/plan/limits.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/text/text.h>

namespace stormo::plan {
namespace {

GoalKind read_goal(TextReader& in) {
  const std::string word = in.word("a goal");
  std::string known;
  for (const GoalKind kind : kGoalKinds) {
    if (word == to_string(kind)) return kind;
    known += known.empty() ? "" : ", ";
    known += to_string(kind);
  }
  if (in.ok()) in.fail_at_token("unknown goal '" + word + "'; write one of " + known);
  return {};
}

Transfer read_transfer(TextReader& in, const Schedule& s) {
  Transfer t;
  t.from = in.small_integer("the sending rank", 0, s.ranks - 1);
  in.expect(">");
  t.to = in.small_integer("the receiving rank", 0, s.ranks - 1);
  if (in.accept("+")) {
    t.how = ReceiveOp::kReduce;
  } else if (!in.accept("=")) {
    in.fail("expected '+' (reduce) or '=' (copy)");
  }
  in.expect("c");
  t.chunk = in.small_integer("the chunk", 0, s.chunks - 1);
  return t;
}

}  // namespace

std::string to_text(const Schedule& s) {
  std::string out = "schedule v1 ";
  append_word(out, s.name);
  out += ' ';
  out += to_string(s.goal.kind);
  if (has_root(s.goal.kind) || s.goal.root != 0) {
    out += " root=";
    append_integer(out, s.goal.root);
  }
  out += " ranks=";
  append_integer(out, s.ranks);
  out += " chunks=";
  append_integer(out, s.chunks);
  out += '\n';
  for (std::size_t i = 0; i < s.rounds.size(); ++i) {
    out += "round ";
    append_integer(out, static_cast<std::int64_t>(i));
    out += ':';
    for (const Transfer& t : s.rounds[i]) {
      out += ' ';
      append_integer(out, t.from);
      out += '>';
      append_integer(out, t.to);
      out += t.how == ReceiveOp::kReduce ? " +c" : " =c";
      append_integer(out, t.chunk);
    }
    out += '\n';
  }
  return out;
}

Result<Schedule> parse_schedule(std::string_view text) {
  TextReader in(text);
  in.expect_header("schedule");
  Schedule s;
  s.name = in.word("the schedule's name");
  s.goal.kind = read_goal(in);
  const bool has_root = in.accept("root");
  if (has_root) {
    in.expect("=");
    s.goal.root = in.small_integer("root", 0, kMaxRanks - 1);
  }
  s.ranks = static_cast<int>(in.field("ranks", 1, kMaxRanks));
  if (s.goal.root >= s.ranks) in.fail_at_token("there are fewer ranks than the root needs");
  s.chunks = static_cast<int>(in.field("chunks", 1, kMaxChunks));
  in.expect_line_end();

  std::int64_t transfers = 0;
  while (!in.at_end()) {
    in.expect("round");
    const int number = in.small_integer("the round's number", 0, kMaxRounds - 1);
    if (in.ok() && number != static_cast<int>(s.rounds.size())) {
      in.fail_at_token("expected round " + std::to_string(s.rounds.size()));
    }
    in.expect(":");
    Round& round = s.rounds.emplace_back();
    while (!in.at_line_end()) {
      round.push_back(read_transfer(in, s));
      if (++transfers > kMaxTransfers) in.fail_at_token("too many transfers for one plan");
    }
  }
  if (!in.ok()) return in.status();
  return s;
}

}  // namespace stormo::plan
