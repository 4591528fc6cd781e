// Split patterns that are not written by hand, through PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "trireme/core/error.h"
#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

namespace {

struct Pcre2Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

/// As the library of Hugging Face's tokenizers reads the pattern. PCRE2's \s holds U+180E, which is
/// no white space since Unicode 6.3. Other escapes, such as \w and \b, mean other characters there.
std::string translated(const std::string& pattern) {
  std::string all;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escaped = pattern[i] == '\\' && i + 1 < pattern.size();
    if (!escaped) {
      all += pattern[i];
      continue;
    }
    const char what = pattern[++i];
    const bool letter = (what >= 'a' && what <= 'z') || (what >= 'A' && what <= 'Z') ||
                        (what >= '0' && what <= '9');
    if (letter && std::string_view("sSdDpPrnt").find(what) == std::string_view::npos)
      throw Error(
          fmt::format("the split pattern '{}' has \\{}, which is not supported", pattern, what));
    if (what == 's')
      all += R"(\p{White_Space})";
    else if (what == 'S')
      all += R"(\P{White_Space})";
    else
      (all += '\\') += what;
  }
  return all;
}

class RegexSplitter : public Splitter {
 public:
  explicit RegexSplitter(const std::string& pattern) {
    const std::string text = translated(pattern);
    int number = 0;
    size_t place = 0;
    code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                      &number, &place, nullptr));
    if (!code_) {
      char why[256] = {};
      pcre2_get_error_message(number, reinterpret_cast<PCRE2_UCHAR*>(why), sizeof why);
      throw Error(fmt::format("the split pattern '{}' cannot be read: {}", pattern, why));
    }
    // Without a compiler for this CPU it is slower, and gives the same.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  }

  size_t end_of(std::string_view text, size_t begin) const override {
    thread_local std::unique_ptr<pcre2_match_data, Pcre2Free> match(
        pcre2_match_data_create(1, nullptr));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    for (size_t from = begin; from < text.size();) {
      const int found =
          pcre2_match(code_.get(), subject, text.size(), from, 0, match.get(), nullptr);
      if (found == PCRE2_ERROR_NOMATCH) return text.size();
      if (found < 0)
        throw Error(fmt::format("the split pattern gives up at byte {} of a text (PCRE2 error {})",
                                from, found));
      const size_t* place = pcre2_get_ovector_pointer(match.get());
      if (place[0] > begin) return place[0];
      if (place[1] > begin) return place[1];
      ++from;  // an empty match
    }
    return text.size();
  }

 private:
  std::unique_ptr<pcre2_code, Pcre2Free> code_;
};

}  // namespace

std::unique_ptr<const Splitter> make_regex_splitter(const std::string& pattern) {
  if (pattern.find("&&") != std::string::npos)
    throw Error(fmt::format(
        "the split pattern '{}' intersects classes (&&), which is not supported", pattern));
  return std::make_unique<RegexSplitter>(pattern);
}

}  // namespace trireme::format
