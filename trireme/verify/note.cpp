#include "trireme/verify/note.h"

#include <torch/nn/module.h>

#include <array>

#include "trireme/comm/texts.h"
#include "trireme/core/json.h"

namespace trireme::verify {

namespace {

core::Json json_of(const Place& place) {
  core::Json held = core::Json::array(), cuts = core::Json::array();
  for (const LocalBox& one : place.held)
    held.push_back({one.box.offset, one.box.shape, one.at, one.copies});
  for (const Cut& cut : place.cuts) {
    core::Json sections = core::Json::array();
    for (const Section& one : cut.sections)
      sections.push_back({one.size, one.copies, one.grain, one.fine});
    cuts.push_back({static_cast<int>(cut.axis), cut.dim, sections});
  }
  return {{"held", held}, {"first_row", place.first_row}, {"cuts", cuts}, {"rows", place.rows}};
}

Place place_of(const core::Json& json) {
  Place place;
  for (const auto& one : json.at("held")) place.held.push_back({{one[0], one[1]}, one[2], one[3]});
  for (const auto& one : json.at("cuts")) {
    Cut cut{.axis = static_cast<Axis>(one[0].get<int>()), .dim = one[1], .sections = {}};
    for (const auto& section : one[2])
      cut.sections.push_back({section[0], section[1], section[2], section[3]});
    place.cuts.push_back(std::move(cut));
  }
  place.first_row = json.at("first_row");
  place.rows = json.at("rows");
  return place;
}

std::string describe(const std::vector<Note>& notes) {
  core::Json all = core::Json::array();
  for (const Note& note : notes) {
    core::Json one = {{"stage", static_cast<int>(note.stage)},
                      {"name", note.name},
                      {"place", json_of(note.place)}};
    if (note.value.defined()) one["shape"] = note.value.sizes().vec();
    all.push_back(std::move(one));
  }
  return all.dump();
}

/// The notes that a text describes, their values one after the other in `flat`.
std::vector<Note> read(const std::string& text, const at::Tensor& flat) {
  std::vector<Note> notes;
  int64_t begin = 0;
  for (const auto& one : core::parse_json(text, "a rank's notes")) {
    Note note{static_cast<Stage>(one.at("stage").get<int>()),
              one.at("name"),
              {},
              place_of(one.at("place"))};
    if (one.contains("shape")) {
      const auto shape = one.at("shape").get<std::vector<int64_t>>();
      const int64_t count = Box{{}, shape}.numel();
      note.value = flat.narrow(0, begin, count).view(shape);
      begin += count;
    }
    notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace

Note scalar(Stage stage, const std::string& name, double value) {
  return {stage, name, at::full({}, value, at::kDouble), {.held = {LocalBox{}}}};
}

std::string_view to_string(Stage stage) {
  constexpr std::array<std::string_view, 8> kNames = {"input",         "weight",         "buffer",
                                                      "output",        "loss",           "gradient",
                                                      "gradient norm", "evaluation loss"};
  return kNames[static_cast<std::size_t>(stage)];
}

std::vector<std::vector<Note>> gather(const std::vector<Note>& mine,
                                      const comm::Communicator& world) {
  const auto texts = comm::all_gather_texts(world, describe(mine));
  std::vector<at::Tensor> parts = {at::empty({0}, at::kDouble)};
  for (const Note& note : mine)
    if (note.value.defined()) parts.push_back(note.value.reshape({-1}).cpu());
  const at::Tensor flat = at::cat(parts);
  at::Tensor counts = at::empty({world.size()}, at::kLong);
  world.all_gather(counts, at::tensor({flat.numel()}, at::kLong)).wait();
  const comm::Rows rows(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel());
  at::Tensor all;
  if (world.rank() == 0) all = at::empty({counts.sum().item<int64_t>()}, at::kDouble);
  world.gather(all, flat, 0, rows).wait();
  std::vector<std::vector<Note>> notes;
  if (world.rank() != 0) return notes;
  int64_t begin = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    notes.push_back(read(texts[rank], all.narrow(0, begin, rows[rank])));
    begin += rows[rank];
  }
  return notes;
}

std::vector<LocalBox> boxes_of(const Note& note, const std::vector<int64_t>& whole,
                               const Coord& coord, const Degrees& degrees) {
  if (!note.place.rows) return note.place.held;
  std::vector<int64_t> block = whole;
  block[0] = note.value.size(0);
  std::vector<Cut> cuts = note.place.cuts;
  for (Cut& cut : cuts)
    if (cut.dim < 0) cut.dim += static_cast<int>(whole.size());
  auto held = Layout(block, cuts).local_boxes(coord, degrees);
  for (LocalBox& one : held) one.box.offset[0] += note.place.first_row;
  return held;
}

}  // namespace trireme::verify
