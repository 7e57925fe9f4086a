#include <stormo/train/population/model_exchange.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

#include <stormo/tensor/bridge.h>
#include <stormo/train/perform/last_wait.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {
namespace {

/// Of messages in the group of members, with the number of the tensor added.
constexpr std::uint32_t kTag = 0x49000000;

}  // namespace

ModelExchange::~ModelExchange() { wait_or_keep(under_way_); }

Result<std::vector<SentModel>> ModelExchange::exchange(
    comm::Communicator& ranks, const plan::MixingMatrix& round,
    const std::vector<analysis::Collective>& sent, const SentModel& own) {
  const std::vector<Rank> from = senders_to(round, ranks.rank()),
                          to = receivers_of(round, ranks.rank());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const comm::Buffer out = tensor::buffer_of(own[i]);
    STORMO_RETURN_IF_ERROR(check_elements(sent.at(i), out.count, out.dtype));
    Part& part = under_way_.emplace_back();
    part.own = own[i];
    part.theirs = torch::empty({std::ssize(from), own[i].numel()}, own[i].options());
    std::vector<comm::Buffer> in;
    for (std::int64_t n = 0; n < std::ssize(from); ++n) {
      const torch::Tensor one = part.theirs[n];
      in.push_back(tensor::buffer_of(one));
    }
    part.works = start_messages(ranks, sent[i], kTag + static_cast<std::uint32_t>(i),
                                {.own = out, .to = to, .theirs = in, .from = from});
  }
  std::vector<SentModel> out(from.size());
  for (Part& part : under_way_) {
    for (comm::Work& w : part.works) STORMO_RETURN_IF_ERROR(w.wait());
    for (std::size_t n = 0; n < out.size(); ++n) {
      out[n].push_back(part.theirs[static_cast<std::int64_t>(n)]);
    }
  }
  under_way_.clear();
  return out;
}

}  // namespace stormo::train
