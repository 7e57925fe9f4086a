#pragma once

#include <stormo/protocol/register/acceptor.h>
#include <stormo/protocol/register/proposer.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/register_history.h"

namespace stormo::protocol::test {

/// What is done wrong in a world. By default nothing.
struct Wrong {
  /// Takes the place of decide().
  std::function<AcceptorDecision(const AcceptorState&, const RegisterRequest&)> acceptor = decide;
  /// What an acceptor that comes back makes of what it finds on its disk.
  std::function<void(AcceptorState&)> on_restart = [](AcceptorState&) {};
  bool answers_before_sync = false;
  /// One grant of such a request counts as that of every acceptor.
  std::optional<RegisterRequest::Kind> one_counts_as_all{};
};

/// Acceptors, clients with a proposer each, and a network, in virtual time: each step one thing
/// happens, by chance. Messages are lost, come twice or in another order, lines are cut, acceptors
/// crash at any point of a write, and clients give up, or end and come back as others.
class RegisterWorld {
 public:
  struct Options {
    int acceptors = 3;
    int clients = 3;
    Wrong wrong{};
  };
  RegisterWorld(std::uint64_t seed, Options options)
      : options_(std::move(options)),
        chance_(seed),
        calm_(static_cast<std::size_t>(1 + seed % 4)),
        acceptors_(static_cast<std::size_t>(options_.acceptors)),
        is_cut_(static_cast<std::size_t>(options_.acceptors * options_.clients)) {
    for (int c = 0; c < options_.clients; ++c, ++next_id_) {
      clients_.push_back({.proposer = Proposer(next_id_, options_.acceptors), .id = next_id_});
    }
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }

  /// From now on nothing fails: every client ends what it does, and then reads. The steps that this
  /// took, or nothing if somebody does not come to an end.
  std::optional<int> come_to_rest() {
    is_cut_.assign(is_cut_.size(), false);
    for (Acceptor& a : acceptors_) {
      if (!a.is_up) restart(a);
    }
    is_resting_ = true;
    int steps = 0;
    for (const bool reads : {false, true}) {
      for (int c = 0; c < options_.clients; ++c) {
        if (reads) begin(c, true);
        for (Client& client = clients_[index(c)]; client.call; ++steps) {
          if (steps > 2000) return {};
          if (client.proposer.is_contested()) client.proposer.restart();
          for (std::size_t a = 0; a < acceptors_.size(); ++a) send(index(c), a);
          while (!network_.empty()) {
            for (std::size_t a = 0; a < acceptors_.size(); ++a) sync(a);
            if (!network_.empty()) deliver(0);
          }
        }
      }
    }
    return steps;
  }

  const stormo::test::RegisterHistory& history() const { return history_; }
  std::size_t crashes() const { return crashes_; }
  std::size_t lost_writes() const { return lost_writes_; }

 private:
  struct Owed {
    std::size_t to = 0;  ///< client
    std::uint64_t id = 0;
    RegisterReply reply;
  };
  struct Acceptor {
    AcceptorState memory{}, disk{};
    std::optional<AcceptorState> unsynced{};  ///< written, and lost or not by a crash
    std::optional<Owed> owed{};               ///< until that is on disk
    bool is_up = true;
  };
  struct Client {
    Proposer proposer;
    std::uint64_t id = 0;
    std::optional<std::size_t> call{};  ///< in the history
    std::uint64_t known = 0;            ///< the version that it has seen last
  };
  struct Message {
    std::size_t client = 0, acceptor = 0;
    std::uint64_t id = 0;  ///< of the client's proposer
    std::optional<RegisterRequest> request{};
    std::optional<RegisterReply> reply{};
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(chance_() % n); }
  bool once_in(std::size_t n) { return below(n) == 0; }
  std::vector<bool>::reference is_cut(std::size_t client, std::size_t acceptor) {
    return is_cut_[client * acceptors_.size() + acceptor];
  }

  void step() {
    std::size_t what = below(100);
    if (what >= 94 && !once_in(calm_)) what = below(94);
    const int c = static_cast<int>(below(clients_.size()));
    if (what < 20) {
      if (!clients_[index(c)].call) begin(c, once_in(3));
      send(index(c), below(acceptors_.size()));
    } else if (what < 70) {
      if (!network_.empty()) deliver(once_in(2) ? 0 : below(network_.size()));
    } else if (what < 86) {
      sync(below(acceptors_.size()));
    } else if (what < 94) {
      if (clients_[index(c)].proposer.is_contested()) clients_[index(c)].proposer.restart();
    } else if (what < 96) {
      if (Acceptor& a = acceptors_[below(acceptors_.size())]; a.is_up) {
        crash(a);
      } else {
        restart(a);
      }
    } else if (what < 98) {
      // half of what is cut is soon mended
      const std::size_t line = below(is_cut_.size());
      is_cut_[line] = !is_cut_[line] && once_in(2);
    } else if (once_in(4)) {
      give_up(c);
    } else {
      for (Acceptor& a : acceptors_) {
        if (!a.is_up) restart(a);
      }
    }
  }

  void begin(int c, bool reads) {
    Client& client = clients_[index(c)];
    if (reads) {
      client.call = history_.read(c);
      client.proposer.read();
      return;
    }
    // now and then what it cannot know, or knows no longer
    const std::uint64_t expected = client.known + (once_in(8) ? 1 : 0);
    const std::string bytes = std::to_string(++written_);
    client.call = history_.change(c, expected, bytes);
    client.proposer.change(expected, bytes);
  }

  void send(std::size_t c, std::size_t a) {
    const Client& client = clients_[c];
    if (!client.call || !client.proposer.awaits(static_cast<int>(a))) return;
    const auto is_it = [&](const Message& m) {
      return m.client == c && m.acceptor == a && m.request == client.proposer.request();
    };
    // seldom again while it is on its way
    if (std::ranges::any_of(network_, is_it) && !once_in(8)) return;
    network_.push_back(
        {.client = c, .acceptor = a, .id = client.id, .request = client.proposer.request()});
  }

  void deliver(std::size_t i) {
    const Message message = network_[i];
    if (message.request && acceptors_[message.acceptor].owed) return;  // it is busy
    // some come twice
    if (is_resting_ || !once_in(8))
      network_.erase(network_.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_cut(message.client, message.acceptor) || (!is_resting_ && once_in(8 * calm_))) return;
    if (message.request) {
      take(message);
    } else if (message.id == clients_[message.client].id) {
      take_reply(message);
    }
  }

  void take(const Message& message) {
    Acceptor& a = acceptors_[message.acceptor];
    if (!a.is_up) return;
    const AcceptorDecision decision = options_.wrong.acceptor(a.memory, *message.request);
    const Owed owed{.to = message.client, .id = message.id, .reply = decision.reply};
    const bool is_new = decision.next != a.memory;
    if (is_new) a.unsynced = decision.next;
    if (options_.wrong.answers_before_sync) {
      a.memory = decision.next;
      reply(message.acceptor, owed);
    } else if (is_new) {
      a.owed = owed;
    } else {
      reply(message.acceptor, owed);
    }
  }
  void sync(std::size_t i) {
    Acceptor& a = acceptors_[i];
    if (!a.unsynced) return;
    a.disk = a.memory = *std::exchange(a.unsynced, {});
    if (a.owed) reply(i, *std::exchange(a.owed, {}));
  }
  void reply(std::size_t acceptor, const Owed& owed) {
    network_.push_back(
        {.client = owed.to, .acceptor = acceptor, .id = owed.id, .reply = owed.reply});
  }
  void crash(Acceptor& a) {
    ++crashes_;
    a.is_up = false;
    // the file was renamed, and the folder not synced: both may be there afterwards
    if (a.unsynced && once_in(2)) a.disk = *a.unsynced;
    lost_writes_ += a.unsynced && a.disk != *a.unsynced ? 1 : 0;
    a.unsynced.reset();
    a.owed.reset();
  }
  void restart(Acceptor& a) {
    a.is_up = true;
    a.memory = a.disk;
    options_.wrong.on_restart(a.memory);
  }

  void take_reply(const Message& message) {
    Client& client = clients_[message.client];
    if (!client.call) return;
    Proposer& proposer = client.proposer;
    const RegisterRequest::Kind kind = proposer.request().kind;
    const bool is_new = proposer.receive(static_cast<int>(message.acceptor), *message.reply);
    if (!is_new && options_.wrong.one_counts_as_all == kind && message.reply->granted) {
      for (int a = 0; a < options_.acceptors; ++a) (void)proposer.receive(a, *message.reply);
    }
    if (proposer.outcome()) end(client);
  }

  void end(Client& client) {
    using Kind = RegisterOutcome::Kind;
    using Result = stormo::test::RegisterCall::Result;
    const RegisterOutcome& outcome = *client.proposer.outcome();
    const std::size_t call = *std::exchange(client.call, {});
    client.known = outcome.value.version;
    if (outcome.kind == Kind::kUnknown) return;
    const Result result = outcome.kind == Kind::kRead      ? Result::kRead
                          : outcome.kind == Kind::kChanged ? Result::kChanged
                                                           : Result::kMismatch;
    history_.end(call, result, outcome.value.version, outcome.value.bytes);
  }

  /// At its deadline; or it ends, and comes back as another proposer.
  void give_up(int c) {
    Client& client = clients_[index(c)];
    client.call.reset();
    if (once_in(2)) return;
    client.id = next_id_++;
    client.proposer = Proposer(client.id, options_.acceptors);
    client.known = 0;
  }

  Options options_;
  std::mt19937_64 chance_;
  std::size_t calm_;  // from 1, where most fails
  std::vector<Acceptor> acceptors_;
  std::vector<bool> is_cut_;  // by client and acceptor
  std::vector<Client> clients_;
  std::uint64_t next_id_ = 1;
  std::vector<Message> network_;
  std::uint64_t written_ = 0;
  bool is_resting_ = false;
  std::size_t crashes_ = 0, lost_writes_ = 0;
  stormo::test::RegisterHistory history_;
};

}  // namespace stormo::protocol::test
