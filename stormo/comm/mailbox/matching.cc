#include <stormo/comm/mailbox/matching.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace stormo::comm {

using Kind = MessageRecord::Kind;

namespace {

/// What a message counts of the window.
std::uint64_t in_window(std::uint64_t bytes) { return sizeof(MessageRecord) + bytes; }

}  // namespace

Matching::Matching(int ranks, Options options)
    : options_(options),
      ahead_(static_cast<std::size_t>(ranks)),
      credit_(static_cast<std::size_t>(ranks)) {}

bool Matching::needs_credit(Rank to, std::uint64_t bytes) const {
  return bytes <= options_.eager_bytes &&
         ahead_[static_cast<std::size_t>(to)] + in_window(bytes) > options_.eager_window;
}

void Matching::send(Id id, const Send& send, Effects& out) {
  MessageRecord record{.dtype = send.dtype,
                       .channel = send.channel,
                       .tag = send.tag,
                       .count = send.count,
                       .bytes = send.bytes.size()};
  if (record.bytes <= options_.eager_bytes && !needs_credit(send.to, record.bytes)) {
    ahead_[static_cast<std::size_t>(send.to)] += in_window(record.bytes);
    out.records.push_back({send.to, record, send.bytes, id});
  } else {
    record.kind = Kind::kReadyToSend;
    record.send = id;
    record.address = reinterpret_cast<std::uintptr_t>(send.bytes.data());
    offers_.emplace(id, Offered{send});
    out.records.push_back({.to = send.to, .record = record});
  }
}

void Matching::receive(Id id, const Receive& receive, Effects& out) {
  const Posted posted{id, receive};
  const auto first = std::ranges::find_if(
      unexpected_, [&](const Unexpected& u) { return fits(receive, u.from, u.record); });
  if (first == unexpected_.end()) {
    posted_.push_back(posted);
    return;
  }
  const Unexpected found = std::move(*first);
  unexpected_.erase(first);
  take(posted, found.from, found.record, found.payload, out);
}

bool Matching::fits(const Receive& receive, Rank from, const MessageRecord& record) {
  return (receive.from == from || receive.from == kAnyRank) && receive.channel == record.channel &&
         receive.tag == record.tag;
}

Status Matching::arrived(Rank from, const MessageRecord& record, std::span<const std::byte> payload,
                         Effects& out) {
  switch (record.kind) {
    case Kind::kEager:
    case Kind::kReadyToSend: {
      const auto first = std::ranges::find_if(
          posted_, [&](const Posted& p) { return fits(p.what, from, record); });
      if (first == posted_.end()) {
        unexpected_.push_back({from, record, {payload.begin(), payload.end()}});
        return {};
      }
      const Posted posted = *first;
      posted_.erase(first);
      take(posted, from, record, payload, out);
      return {};
    }
    case Kind::kClearToSend:
      if (Offered* const own = offered_to(from, record.send); own != nullptr && !own->cleared) {
        own->cleared = true;
        MessageRecord data = record;
        data.kind = Kind::kData;
        data.count = 0;
        out.records.push_back({from, data, own->what.bytes, record.send});
        return {};
      }
      break;
    case Kind::kData: break;
    case Kind::kDone:
      if (Offered* const own = offered_to(from, record.send); own != nullptr && !own->cleared) {
        sent(from, record.send, out);
        return {};
      }
      break;
    case Kind::kCredit:
      if (std::uint64_t& ahead = ahead_[static_cast<std::size_t>(from)]; record.bytes <= ahead) {
        ahead -= record.bytes;
        return {};
      }
      break;
  }
  return belongs_to_nothing(from, record);
}

Status Matching::belongs_to_nothing(Rank from, const MessageRecord& record) {
  return {Code::kCorrupt,
          fmt::format("rank {} sent a record (kind {}, {} bytes) that belongs to no message", from,
                      static_cast<int>(record.kind), record.bytes)};
}

Matching::Offered* Matching::offered_to(Rank peer, Id send) {
  const auto own = offers_.find(send);
  return own != offers_.end() && own->second.what.to == peer ? &own->second : nullptr;
}

void Matching::take(const Posted& posted, Rank from, const MessageRecord& record,
                    std::span<const std::byte> payload, Effects& out) {
  const Receive& what = posted.what;
  if (what.dtype != record.dtype || what.count != record.count ||
      what.bytes.size() != record.bytes) {
    out.mismatch = Status(
        Code::kMismatch,
        fmt::format("rank {} sent {} {} with tag {}, where {} {} are expected", from, record.count,
                    to_string(record.dtype), record.tag, what.count, to_string(what.dtype)));
    posted_.push_front(posted);  // it will not be complete
    return;
  }
  if (record.kind == Kind::kReadyToSend) {
    matched_.emplace(posted.id, Matched{what, from, record});
    out.fetches.push_back({from, posted.id, record, what.bytes});
    return;
  }
  if (!payload.empty()) std::memcpy(what.bytes.data(), payload.data(), payload.size());
  give_credit(from, in_window(record.bytes), out);
  out.completions.push_back({posted.id, from});
}

// Half of the window at a time: a record for each short message would double their number.
void Matching::give_credit(Rank from, std::uint64_t bytes, Effects& out) {
  std::uint64_t& credit = credit_[static_cast<std::size_t>(from)];
  credit += bytes;
  if (2 * credit < options_.eager_window) return;
  out.records.push_back(
      {.to = from, .record = {.kind = Kind::kCredit, .bytes = std::exchange(credit, 0)}});
}

void Matching::cut(const Outgoing& data, std::size_t most, std::deque<Outgoing>& out) {
  std::size_t begin = 0;
  do {
    Outgoing& piece = out.emplace_back(data);
    piece.payload = data.payload.subspan(begin, std::min(most, data.payload.size() - begin));
    piece.record.count = static_cast<std::int64_t>(begin);
    piece.record.bytes = piece.payload.size();
    piece.record.address = 0;  // not before it lies where its receiver can read it
    begin += piece.payload.size();
    if (begin < data.payload.size()) piece.send = 0;
  } while (begin < data.payload.size());
}

void Matching::clear(const Fetch& fetch, Effects& out) {
  matched_.at(fetch.receive).state = Matched::State::kCleared;
  MessageRecord ask = fetch.offer;
  ask.kind = Kind::kClearToSend;
  ask.receive = fetch.receive;
  out.records.push_back({.to = fetch.from, .record = ask});
}

Result<Matching::Fetch> Matching::landing(Rank from, const MessageRecord& record) {
  const auto found = matched_.find(record.receive);
  if (found == matched_.end()) return belongs_to_nothing(from, record);
  Matched& matched = found->second;
  const std::span<std::byte> all = matched.what.bytes;
  if (matched.from != from || matched.state != Matched::State::kCleared ||
      !std::cmp_equal(record.count, matched.landed) || record.bytes > all.size() - matched.landed) {
    return belongs_to_nothing(from, record);
  }
  const Fetch piece{from, record.receive, record, all.subspan(matched.landed, record.bytes)};
  matched.landed += record.bytes;
  if (matched.landed == all.size()) matched.state = Matched::State::kLanding;
  return piece;
}

void Matching::fetched(const Fetch& fetch, bool by_memory, Effects& out) {
  if (by_memory) {
    out.records.push_back(
        {.to = fetch.from,
         .record = {
             .kind = Kind::kDone, .send = fetch.offer.send, .address = fetch.offer.address}});
  }
  Matched& matched = matched_.at(fetch.receive);
  matched.fetched += fetch.to.size();
  if (matched.fetched < matched.what.bytes.size()) return;
  matched_.erase(fetch.receive);
  out.completions.push_back({fetch.receive, fetch.from});
}

void Matching::sent(Rank to, Id send, Effects& out) {
  offers_.erase(send);
  out.completions.push_back({send, to});
}

}  // namespace stormo::comm
