#include <stormo/analysis/schedule/moves.h>

namespace stormo::analysis {
namespace {

template <class F>
void for_each(const plan::Schedule& s, F&& f) {
  for (std::size_t i = 0; i < s.rounds.size(); ++i) {
    for (const plan::Transfer& t : s.rounds[i]) f(static_cast<int>(i), t);
  }
}

}  // namespace

MovesByChunk::MovesByChunk(const plan::Schedule& s)
    : begin_(static_cast<std::size_t>(s.chunks) + 1) {
  for_each(s,
           [&](int, const plan::Transfer& t) { ++begin_[static_cast<std::size_t>(t.chunk) + 1]; });
  for (std::size_t c = 1; c < begin_.size(); ++c) begin_[c] += begin_[c - 1];
  moves_.resize(begin_.back());
  std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
  for_each(s, [&](int round, const plan::Transfer& t) {
    moves_[next[static_cast<std::size_t>(t.chunk)]++] = {round, t};
  });
}

}  // namespace stormo::analysis
