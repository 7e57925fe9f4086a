#include <stormo/observe/json_lines.h>

#include <cstdint>
#include <variant>

#include <nlohmann/json.hpp>

#include <stormo/observe/data_text.h>
#include <stormo/observe/sharding_table.h>

namespace stormo::observe {
namespace {

using Json = nlohmann::ordered_json;

/// Names come from users and files, so bytes that are no UTF-8 are replaced instead of thrown
/// about.
void write_line(std::ostream& out, const Json& line) {
  out << line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" << std::flush;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json json_of(std::monostate) { return nullptr; }
Json json_of(const auto& value) { return value; }

Json staleness_json(const std::vector<StalenessRecord>& workers) {
  Json out = Json::array();
  for (const StalenessRecord& s : workers) {
    out.push_back(
        {{"gradients", s.gradients}, {"mean", s.mean}, {"max", s.max}, {"histogram", s.histogram}});
  }
  return out;
}

Json servers_json(const std::vector<ServerRecord>& servers) {
  Json out = Json::array();
  for (const ServerRecord& s : servers) {
    out.push_back({{"bytes", s.bytes}, {"pulls", s.pulls}, {"pushes", s.pushes}});
  }
  return out;
}

Json lost_workers_json(const std::vector<LostWorkerRecord>& workers) {
  Json out = Json::array();
  for (const LostWorkerRecord& w : workers) {
    out.push_back({{"worker", w.worker}, {"lost", w.lost}, {"came_back", w.came_back}});
  }
  return out;
}

Json share_json(const std::array<double, kNumLanes>& share) {
  Json out = Json::object();
  for (int lane = 0; lane < kNumLanes; ++lane) {
    out[std::string(to_string(static_cast<Lane>(lane)))] = share[lane];
  }
  return out;
}

Json population_json(const PopulationRecord& r) {
  return {{"best", r.best},
          {"exchanges", r.exchanges},
          {"taken", r.taken},
          {"mean_age", r.mean_age},
          {"max_age", r.max_age}};
}

Json averaging_json(const AveragingRecord& r) {
  return {{"averages", r.averages},
          {"mean_distance", r.mean_distance},
          {"max_distance", r.max_distance},
          {"period", r.period}};
}

}  // namespace

void JsonObserver::on_start(const StartRecord& r) {
  Json line = {{"event", "start"},
               {"schema", kJsonLinesSchema},
               {"recipe", r.recipe},
               {"strategy", r.strategy},
               {"ranks", r.ranks},
               {"hosts", r.hosts},
               {"parameters", r.parameters},
               {"steps", r.steps},
               {"first_step", r.first_step},
               {"global_batch", r.global_batch},
               {"seed", r.seed},
               {"checkpoint", text_or_null(r.checkpoint)}};
  if (!r.data.empty()) line["data"] = Json::parse(data_json(r.data));
  for (const ChangeRecord& c : r.changed) {
    line["changed"].push_back({{"key", c.key},
                               {"before", Json::parse(c.before, nullptr, false)},
                               {"now", Json::parse(c.now, nullptr, false)}});
  }
  write_line(out_, line);
}

void JsonObserver::on_sharding(const ShardingRecord& r) {
  Json line = {{"event", "sharding"}};
  line.update(Json::parse(sharding_json(r)));
  write_line(out_, line);
}

void JsonObserver::on_step(const StepRecord& r) {
  Json line = {{"event", "step"},
               {"step", r.step},
               {"steps", r.steps},
               {"epoch", r.epoch},
               {"loss", r.loss},
               {"learning_rate", r.learning_rate},
               {"samples_per_s", r.samples_per_s},
               {"eta_s", r.eta_s},
               {"share", share_json(r.share)}};
  for (const auto& share : r.rank_shares) line["rank_shares"].push_back(share_json(share));
  if (r.slowest >= 0) {
    line["slowest"] = {{"rank", r.slowest}, {"host", text_or_null(r.slowest_host)}};
  }
  write_line(out_, line);
}

void JsonObserver::on_eval(const EvalRecord& r) {
  Json line = {{"event", "eval"}, {"split", r.split}, {"step", r.step}, {"loss", r.loss}};
  if (r.accuracy) line["accuracy"] = *r.accuracy;
  if (r.mae) line["mae"] = *r.mae;
  if (r.r2) line["r2"] = *r.r2;
  if (r.f1) line["f1"] = *r.f1;
  if (r.auc) line["auc"] = *r.auc;
  if (!r.member_losses.empty()) line["member_losses"] = r.member_losses;
  if (r.churn) line["churn"] = *r.churn;
  if (!r.confusion.empty()) {
    line["classes"] = r.classes;
    line["confusion"] = r.confusion;
  }
  line["samples"] = r.samples;
  write_line(out_, line);
}

void JsonObserver::on_save_failed(const SaveFailedRecord& r) {
  write_line(out_, {{"event", "save_failed"},
                    {"step", r.step},
                    {"failures", r.failures},
                    {"max_failures", r.max_failures},
                    {"error", r.error}});
}

void JsonObserver::on_warning(const WarningRecord& r) {
  Json line = {{"event", "warning"}, {"kind", r.kind}, {"step", r.step}, {"message", r.message}};
  for (const auto& [name, value] : r.fields) {
    line[name] = std::visit([](const auto& v) { return json_of(v); }, value);
  }
  write_line(out_, line);
}

void JsonObserver::on_slow_ranks(const SlowRanksRecord& r) {
  for (const SlowRanksRecord::Change& c : r.changes) {
    write_line(out_, {{"event", c.begins ? "slow_rank" : "slow_rank_end"},
                      {"step", r.step},
                      {"rank", c.rank},
                      {"host", text_or_null(c.host)},
                      {"part", c.part},
                      {"part_s", c.seconds},
                      {"expected_s", c.expected},
                      {"ratio", c.ratio},
                      {"step_ratio_without", c.without}});
  }
}

void JsonObserver::on_end(const EndRecord& r) {
  Json line = {{"event", "end"},
               {"steps", r.steps},
               {"samples", r.samples},
               {"wall_s", r.wall_s},
               {"samples_per_s", r.samples_per_s},
               {"train_loss", r.train_loss_steps > 0 ? Json(r.train_loss) : Json(nullptr)},
               {"train_loss_steps", r.train_loss_steps},
               {"skipped_steps", r.skipped_steps},
               {"val_loss", r.val_loss ? Json(*r.val_loss) : Json(nullptr)}};
  if (r.test_accuracy) line["test_accuracy"] = *r.test_accuracy;
  if (r.best_step > 0) {
    line["best"] = {{"metric", r.best_metric}, {"value", r.best_value}, {"step", r.best_step}};
    line["stopped_early"] = r.stopped_early;
  }
  if (r.converged) line["converged"] = true;
  line["weights_hash"] = r.weights_hash;
  line["ranks"] = r.ranks;
  line["hosts"] = r.hosts;
  if (!r.bytes_sent_per_rank.empty()) line["bytes_sent_per_rank"] = r.bytes_sent_per_rank;
  if (!r.staleness.empty()) line["staleness"] = staleness_json(r.staleness);
  if (!r.servers.empty()) {
    line["servers"] = servers_json(r.servers);
    line["lost_workers"] = lost_workers_json(r.lost_workers);
  }
  if (r.averaging) line["averaging"] = averaging_json(*r.averaging);
  if (r.population) line["population"] = population_json(*r.population);
  line["checkpoint"] = text_or_null(r.checkpoint);
  write_line(out_, line);
}

void JsonObserver::on_error(const ErrorRecord& r) {
  write_line(out_, {{"event", "error"}, {"exit_code", r.exit_code}, {"message", r.message}});
}

}  // namespace stormo::observe
