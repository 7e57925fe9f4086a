#include <cli/doctor/torch_facts.h>

#include <nlohmann/json.hpp>

namespace stormo::cli {

using nlohmann::json;

std::string to_json(const TorchFacts& facts) {
  return json{{"version", facts.version}, {"threads", facts.intra_op_threads}, {"blas", facts.blas}}
      .dump();
}

Result<TorchFacts> parse_torch_facts(const std::string& text) {
  TorchFacts facts;
  try {
    const json in = json::parse(text);
    in.at("version").get_to(facts.version);
    in.at("threads").get_to(facts.intra_op_threads);
    in.at("blas").get_to(facts.blas);
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, std::string("facts about libtorch: ") + e.what());
  }
  return facts;
}

}  // namespace stormo::cli
