#include <stormo/train/world/stage_link.h>

#include <algorithm>
#include <new>
#include <string>
#include <thread>

#include <stormo/tensor/bridge.h>

namespace stormo::train {
namespace {

constexpr std::uint32_t kHeaderTag = 1, kElementsTag = 2;
/// How long the end waits for peers that still have what they borrowed.
constexpr Duration kPatience = std::chrono::seconds(10);

template <class T>
comm::Buffer bytes_of_object(T& object) {
  return {&object, static_cast<std::int64_t>(sizeof(T)), DType::kUInt8};
}

}  // namespace

StageLink::StageLink(comm::Communicator& stages)
    : stages_(stages),
      shares_memory_(stages.peer_address(0, 0) != nullptr),
      peers_(static_cast<std::size_t>(stages.size())) {
  for (int host = 0; const int ranks : stages.ranks_per_host()) {
    host_of_.insert(host_of_.end(), static_cast<std::size_t>(ranks), host++);
  }
}

// A peer may still compute with what it has borrowed. If it has not dropped it in time, or the
// group has failed, the memory stays: nobody knows who reads it.
StageLink::~StageLink() {
  const Deadline by = Deadline::after(kPatience);
  for (free_dropped(); !lent_.empty() && stages_.status().ok() && !by.expired(); free_dropped()) {
    std::this_thread::yield();
  }
  for (const Lent& l : lent_) new torch::Tensor(l.tensor);  // NOLINT: never freed, on purpose
  for (Sending& s : sending_) static_cast<void>(s.work.wait(by));
}

bool StageLink::in_host(int stage) const {
  return shares_memory_ && host_of_[static_cast<std::size_t>(stage)] ==
                               host_of_[static_cast<std::size_t>(stages_.rank())];
}

Status StageLink::send(int to, Key key, const torch::Tensor& x, torch::IntArrayRef like) {
  free_dropped();
  STORMO_RETURN_IF_ERROR(forget_sent());
  Header header{.key = key};
  if (x.defined()) {
    if (static_cast<std::size_t>(x.dim()) > kMaxDimensions) {
      return invalid_argument("a tensor between two stages has " + std::to_string(x.dim()) +
                              " dimensions, more than " + std::to_string(kMaxDimensions));
    }
    header.type = static_cast<std::int32_t>(x.scalar_type());
    header.dimensions = static_cast<std::int32_t>(x.dim());
    std::ranges::copy(x.sizes(), header.sizes.begin());
  }
  const torch::Tensor whole = x.defined() ? x.detach().contiguous() : x;
  return in_host(to) ? lend(to, header, whole) : send_far(to, header, whole, like);
}

/// By reference: the receiver says when it has dropped it.
Status StageLink::lend(int to, Header header, const torch::Tensor& x) {
  if (x.defined()) {
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor shared, in_arena(x));
    void* const word = stages_.arena().allocate(sizeof(Word));
    if (word == nullptr) return Status(Code::kExhausted, "no room in the Arena of this rank");
    lent_.push_back({shared, new (word) Word(0)});
    header.elements_at = stages_.arena().offset_of(shared.data_ptr());
    header.dropped_at = stages_.arena().offset_of(word);
  }
  // else it waits for its turn, and this rank must not
  if (sending_.empty()) return stages_.send(bytes_of_object(header), to, kHeaderTag);
  send_later(to, std::make_shared<Header>(header), {});
  return {};
}

Result<torch::Tensor> StageLink::in_arena(const torch::Tensor& x) {
  transport::Arena& arena = stages_.arena();
  if (arena.contains(x.data_ptr())) {
    bytes_shared_ += x.nbytes();
    return x;
  }
  bytes_copied_ += x.nbytes();
  void* const memory = arena.allocate(std::max<std::size_t>(x.nbytes(), 1));
  if (memory == nullptr) return Status(Code::kExhausted, "no room in the Arena of this rank");
  torch::Tensor copy = torch::from_blob(
      memory, x.sizes(), [&arena](void* p) { arena.deallocate(p); }, x.options());
  copy.copy_(x);
  return copy;
}

Status StageLink::send_far(int to, const Header& header, const torch::Tensor& x,
                           torch::IntArrayRef like) {
  const auto [known, is_new] = peer(to).sent.try_emplace({header.key, like.vec()}, header);
  if (known->second != header) {
    return invalid_argument(
        "a tensor between two stages has another shape than in the step before, though the input "
        "has the same; a pipeline between hosts needs shapes that follow from that of the input");
  }
  send_later(to, is_new ? std::make_shared<Header>(header) : nullptr, x);
  return {};
}

/// In the background.
void StageLink::send_later(int to, std::shared_ptr<Header> header, const torch::Tensor& x) {
  if (header != nullptr) {
    comm::Work work = stages_.send_async(bytes_of_object(*header), to, kHeaderTag);
    sending_.push_back({.tensor = {}, .header = std::move(header), .work = std::move(work)});
  }
  if (!x.defined()) return;
  comm::Work work = stages_.send_async(tensor::buffer_of(x), to, kElementsTag);
  sending_.push_back({.tensor = x, .header = {}, .work = std::move(work)});
}

Status StageLink::expect(int from, Key key, torch::IntArrayRef like) {
  Expected expected{.key = key};
  if (!in_host(from)) {
    auto [known, is_new] = peer(from).received.try_emplace({key, like.vec()});
    if (is_new) STORMO_RETURN_IF_ERROR(receive_header(from, key, known->second));
    const Header& header = known->second;
    if (header.type >= 0) {
      const torch::IntArrayRef sizes(header.sizes.data(),
                                     static_cast<std::size_t>(header.dimensions));
      expected.posted = torch::empty(sizes, static_cast<torch::ScalarType>(header.type));
      expected.work = stages_.recv_async(tensor::buffer_of(expected.posted), from, kElementsTag);
    }
  }
  peer(from).expected.push_back(std::move(expected));
  return {};
}

Status StageLink::receive_header(int from, Key key, Header& header) {
  STORMO_RETURN_IF_ERROR(stages_.recv(bytes_of_object(header), from, kHeaderTag));
  return header.key == key ? Status()
                           : Status(Code::kMismatch, "stages move tensors in another order");
}

Result<torch::Tensor> StageLink::receive(int from, Key key) {
  Peer& sender = peer(from);
  while (!sender.arrived.contains(key)) {
    if (sender.expected.empty()) {
      return Status(Code::kBadPlan, "a stage needs a tensor that no move brings");
    }
    const Key first = sender.expected.front().key;
    STORMO_ASSIGN_OR_RETURN(torch::Tensor x, next(from));
    if (first == key) return x;
    sender.arrived.emplace(first, std::move(x));
  }
  return std::move(sender.arrived.extract(key).mapped());
}

/// The first of those expected.
Result<torch::Tensor> StageLink::next(int from) {
  Expected expected = std::move(peer(from).expected.front());
  peer(from).expected.pop_front();
  if (!in_host(from)) {
    if (expected.posted.defined()) STORMO_RETURN_IF_ERROR(expected.work.wait());
    return expected.posted;
  }
  Header header;
  STORMO_RETURN_IF_ERROR(receive_header(from, expected.key, header));
  return header.type < 0 ? torch::Tensor() : borrow(from, header);
}

torch::Tensor StageLink::borrow(int from, const Header& header) const {
  const auto first = std::ranges::find(host_of_, host_of_[static_cast<std::size_t>(from)]);
  const int local = from - static_cast<int>(first - host_of_.begin());
  auto* const dropped = reinterpret_cast<Word*>(stages_.peer_address(local, header.dropped_at));
  const torch::IntArrayRef sizes(header.sizes.data(), static_cast<std::size_t>(header.dimensions));
  return torch::from_blob(
      stages_.peer_address(local, header.elements_at), sizes,
      [dropped](void*) { dropped->store(1, std::memory_order_release); },
      torch::TensorOptions(static_cast<torch::ScalarType>(header.type)));
}

Status StageLink::drain() {
  for (int from = 0; from < num_stages(); ++from) {
    peer(from).arrived.clear();
    while (!peer(from).expected.empty()) STORMO_RETURN_IF_ERROR(next(from).status());
  }
  return {};
}

void StageLink::free_dropped() {
  std::erase_if(lent_, [this](const Lent& l) {
    if (l.dropped->load(std::memory_order_acquire) == 0) return false;
    stages_.arena().deallocate(l.dropped);
    return true;
  });
}

Status StageLink::forget_sent() {
  while (!sending_.empty() && sending_.front().work.test()) {
    Sending sent = std::move(sending_.front());
    sending_.pop_front();
    STORMO_RETURN_IF_ERROR(sent.work.wait());
  }
  return {};
}

}  // namespace stormo::train
