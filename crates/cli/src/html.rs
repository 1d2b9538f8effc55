//! What every page begins with: one that needs nothing else, no script, no fonts, no pictures from
//! elsewhere. Its policy says so to the browser. Colours are those of Okabe and Ito, which can be
//! told apart by everyone.

use crate::plot::escaped;

/// Up to the title.
const BEGIN: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
<meta http-equiv=\"Content-Security-Policy\" \
content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
<meta name=\"color-scheme\" content=\"light dark\">\n<title>";

/// From the title to the body.
const STYLE: &str = "</title>\n<style>\n\
:root{--ink:#1f2933;--faint:#616e7c;--grid:#d9e0e7;--back:#fff;--window:#eef2f6;\
--pass:#006d4e;--fail:#b23a00;--link:#00558a;--c0:#0072b2;--c1:#e69f00;--c2:#009e73;\
--c3:#cc79a7;--c4:#56b4e9;--c5:#d55e00;--c6:#999}\n\
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--faint:#9aa5b1;--grid:#3a4653;\
--back:#151b22;--window:#222b35;--pass:#4fd1a5;--fail:#ff9d5c;--link:#7cc4f5;--c0:#3d9fe0;\
--c2:#19b88b;--c4:#a5dcff;--c5:#f0803c}}\n\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);\
max-width:1240px;margin:2rem auto;padding:0 1rem}\n\
h1,h2,h3{line-height:1.2}h2{margin-top:3rem}a{color:var(--link)}\n\
p.story{max-width:46rem}.faint{color:var(--faint);fill:var(--faint)}\n\
table{border-collapse:collapse;display:block;overflow-x:auto}\n\
td,th{padding:.2rem .8rem .2rem 0;text-align:left;\
border-bottom:1px solid var(--grid);vertical-align:top}.number{text-align:right}\
.number,.whole{white-space:nowrap}\n\
.pass{color:var(--pass);font-weight:600}.fail{color:var(--fail);font-weight:600}\n\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:1rem}\n\
svg{width:100%;height:auto;overflow:visible;font:11px system-ui,sans-serif;fill:var(--ink)}\n\
svg .title{font-size:13px;font-weight:600}svg .middle{text-anchor:middle}\
svg .end{text-anchor:end}\n\
@media(max-width:30rem){svg{font-size:16px}svg .title{font-size:17px}svg .legend{font-size:13px}}\n\
.grid{stroke:var(--grid);stroke-width:1}.window{fill:var(--window);stroke:var(--back)}\n\
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.thin{stroke-width:.8;opacity:.7}\
.dashed{stroke-dasharray:4 3}.band{opacity:.3}.stack{opacity:.85}\n\
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}\
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}\n\
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}\
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}\n\
</style>\n</head>\n<body>\n";

/// The beginning of a page.
pub(crate) fn head(title: &str) -> String {
    format!("{BEGIN}{}{STYLE}", escaped(title))
}
