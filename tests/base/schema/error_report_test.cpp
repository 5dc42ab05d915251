#include "base/schema/error_report.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

TEST(ErrorReport, SaysWhatAProgramNeeds) {
  const Json json = to_json(
      ErrorReport{.kind = ErrorKind::kData, .message = "x: is missing", .exit_code = 7, .command = "data ingest"});
  EXPECT_EQ(json.at("schema"), "specdec.error/1");
  EXPECT_EQ(json.at("verdict"), "error");
  EXPECT_EQ(json.at("kind"), "data");
  EXPECT_EQ(json.at("message"), "x: is missing");
  EXPECT_EQ(json.at("exit_code"), 7);
  EXPECT_EQ(json.at("command"), "data ingest");
  EXPECT_TRUE(json.at("tool_version").is_string());
}

TEST(ErrorReport, NamesEveryKind) {
  const std::pair<ErrorKind, const char*> kinds[] = {
      {ErrorKind::kUsage, "usage"},   {ErrorKind::kConfig, "config"},
      {ErrorKind::kData, "data"},     {ErrorKind::kModel, "model"},
      {ErrorKind::kIo, "io"},         {ErrorKind::kNetwork, "network"},
      {ErrorKind::kDevice, "device"}, {ErrorKind::kInternal, "internal"}};
  for (const auto& [kind, name] : kinds) EXPECT_STREQ(to_string(kind), name);
}

TEST(ErrorReport, IsToldFromAResult) {
  EXPECT_EQ(error_message(to_json(ErrorReport{.message = "no"})), "no");
  EXPECT_EQ(error_message({{"schema", "specdec.error/2"}, {"message", "later"}}), "later");
  EXPECT_EQ(error_message({{"schema", "specdec.error/1"}, {"message", 3}}), "") << "an error, whatever it says";
  for (const Json& result : {Json(nullptr), Json(3), Json::array(), Json::object(), Json({{"schema", 3}}),
                             Json({{"schema", "specdec.validate/1"}, {"message", "no"}})})
    EXPECT_EQ(error_message(result), std::nullopt) << result;
}

}  // namespace
}  // namespace specdec
