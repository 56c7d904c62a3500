"""Writes a tuned table for this machine without a farm: its rows name the pipelines of the fallback."""
import pathlib
import re
from typing import Sequence

import moefarm

COLUMNS = ("gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,"
           "use_g1u1,doweight_stage1,block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,"
           "run_1stage,xbf16,flat,tflops,bw")


def _class_of(layer: moefarm.Layer, folder: pathlib.Path, header: str, row: str) -> str:
    """The device's class as "gfx,cu_num", from the message about a table without a row for it."""
    other = folder / "other.csv"
    other.write_text(header + "\n" + row.replace("CLASS", "sim-none,1") + "\n", encoding="utf-8")
    try:
        moefarm.Layer(other, model_dim=layer.model_dim, inter_dim=layer.inter_dim, experts=layer.experts,
                      topk=layer.topk, device=layer.device)
    except moefarm.Error as error:
        found = re.search(r"export with class=([^/ ]+)/(\d+)", str(error))
        assert found, error
        return ",".join(found.groups())
    raise AssertionError("a table of another class was accepted")


def write(path: pathlib.Path, layer: moefarm.Layer, tokens: Sequence[int]) -> None:
    """Writes a row for each token count. The layer's form must be empty."""
    header = COLUMNS + ",pipeline,layout,model,revision,compiler,routing,seed,n,mad,provenance"
    rows = [f"CLASS,{layer.shape(n)},8,0,1.0,a,0.0%,0.0,None,0.0%,{10.0 + n},1,0,0,1.0,2.0,"
            f"{layer.served(n).pipeline},w1=row,cpu,r1,gcc,zipf:1.2,3,20,0.5,moefarm:race" for n in tokens]
    known = _class_of(layer, path.parent, header, rows[0])
    path.write_text("\n".join([header, *(row.replace("CLASS", known) for row in rows)]) + "\n",
                    encoding="utf-8")
