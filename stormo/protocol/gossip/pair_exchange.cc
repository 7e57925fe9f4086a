#include <stormo/protocol/gossip/pair_exchange.h>

#include <stormo/base/check.h>
#include <stormo/base/index.h>

namespace stormo::protocol {

void AskingRank::begin(int peer) {
  Peer& p = peers_[at(peer)];
  STORMO_CHECK(!question_ && !p.lost, "a rank asks one other at a time, which is there");
  question_ = {peer, {.number = ++p.asked, .value = value_}};
}

// The value may have changed since it was sent: what moves is decided by the one who answered.
void AskingRank::receive(int from, const PairAnswer& answer) {
  Peer& p = peers_[at(from)];
  if (!question_ || question_->first != from || answer.number != p.asked) return;
  value_ -= answer.moved - p.moved;
  p.moved = answer.moved;
  question_.reset();
}

void AskingRank::lose(int peer) {
  peers_[at(peer)].lost = true;
  if (question_ && question_->first == peer) question_.reset();
}

std::optional<PairAnswer> AnsweringRank::receive(int from, const PairQuestion& question) {
  PairAnswer& last = answers_[at(from)];
  if (question.number < last.number) return {};
  if (question.number > last.number) {
    const double moves = (question.value - value_) / 2;
    value_ += moves;
    last = {.number = question.number, .moved = last.moved + moves};
  }
  return last;
}

}  // namespace stormo::protocol
