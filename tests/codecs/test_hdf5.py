"""The arrays of HDF5 and NetCDF-4 files are found, and those of hostile ones in bounded time."""

import base64
import struct
import zlib

import numpy as np
import pytest

from squeeze.codecs import hdf5
from squeeze.codecs.hdf5 import FLOAT, SIGNED, UNSIGNED, Numbers
from tests.makers import hdf5 as files

RAMP = np.add.outer(np.arange(40) * 3, np.arange(50) * 7)
# The same ramp: two chunks of int32 by h5py 3.16, and a chunk of float32 by netCDF4 1.7, coded by zlib.
H5PY = (
    b"c-rgqaB<`1lHy_j0S*oZ76t(ZWbhvfJ_(`nVe$!3nh{EOK<O1sFmXn(oCH){5NbZUx{x4OSCH!eXaHu90SkoYU>F4>5qP*d27u@YC?A$ePcW"
    b"gX%Rozy9u(Tk$iN0MixI}xfY3}30S%}+BPfl|X9l_yq*4Hwa3M)p0Zg(2Q!+@Li5X%LH-iP3&j|Go6Ih;+p*W*7EiES%suyHGL_8%mEhn)g7"
    b"3exxzJTN~W+vteR)~-Y)EQ8%4pfPUU_XBsMzAX&K!JHQZIS~(<sBn1meI?*`HcAWZQzH{iy0A-j1Bk;qVh%1(k07i6pVsVFbYP&C>RB!U=$1"
    b"qP%$St;koeCz-vZZHk5zn?esgPqp?2w?M$2Ohh1N9f0MJUefg~U`TKqU5}yf8nGk;2bYs~k9uD`1N0vSl2{$eK;y-(L%GYIc+56`2u6q7)b-"
    b"(?;%^$lwv@@k<+}`<%#eHFcknyL}S<$=H&&F)1xqHpF-9L6u;s2Yr_4m)TU_J6Qq_k(PjP0MpNr4ucH(jUlzO4;@t`oPl@c6&v^!0b@zI;0T"
    b"y?%|&p`b3QUuoO)?m156)R^;S&!t(<)^!>`(~sVr`hDSK@pbpBe?9xG@5WbW7%7^o?9E=j|H6zE5x=lR*V^d!Q*L&L<=xo#{>9AG+vWCE{C}"
    b"&@y?w%xrd{(^_HGVOaH)~vQs2I0*UI8UUn;$?=iDp(aO7up`TRZqzD#D+HSy$$O30WbvE{%86~m0ig`P<ln4BjcS-{$+*6GO2<15rGCNWEeP"
    b"1gXALT1ATLCFhl?8<LT4KBs8KTf#PxUP}S%D^Nbo_$%H;{xVxwyf6&mNnk8ayzIY!MZp>q^Bv+K!t%J`uWbK6>~Nhe&g!t@IS4)GVj$KgW7w"
    b"SOlOzN+7$k~byt18{ofR<k=Ju*=GKCvzjCYl=j<!_eDHI5{C|UDPOlTIU(SlKu4HRD4vReJhi76pRb4*EeEfXu-p@a-9+&@rv%+=BR1@AaZ)"
    b"0kk7Q-XY<)Kc*zP#7-4lmccx8whtx6|+Y%wc*|w94vOSfAX##EtOCTTmdj{??A<{~I@l=h;{NeE8cwOfFH=mABS7TKxTj6D{z_TU;=0?cGhk"
    b"FP!AQ{@%9s^G|VQ_Wd)~bZwisw0U=YhEEYZ@&YWh&2#RTe>w9snm>Ne|8LV<qdkHgW6xh<qfYe59q16{*}(TkYQ-w%cDAfn2bLx}ls>rPU@N"
    b"=BG{Bc#j+c2k^L#d~mj_le=F7>z;)l!a-~|ST$A&*P0sstF<Hi"
)
NETCDF4 = (
    b"c-rlmc~BEq9LIMz0V9_|5fBgpGD_tRhiMfJhHxh!!J~j?5P~d9PzYD82#ku>qrn3aP^p&1iXD^!iYPK@1w}4{;{i&hjG_f4qpfw&fo8KCF10"
    b"iEk51cppMlN3{k`}5{oeQe-kY7-UA|u4x>_b$2#p4*86nwePqdxL=cNzqI6=N%A&5>TVx@XQp-dVw87%~YaXX!^>aI!jjweTH8sJx$3X^R(%"
    b">|igLDUvWDj8~~8AQch!5@tYO@}^6T;+OKRr<Ot7*_d5U>LR`t?FNj0iLnGrG+XC1Ti2Z8f3Ipd8eV83q^~VOAld&_Cpi%qJA_l9b1)uNE4#"
    b"rT{(fC0s%Aw7Y9#8`S0b&<MIW5L42Wr;~B_>bi$MqR}Ro12Jk(3TvdNI**`QEO=2kjA{k<lgyZGSh(_Z@;v_Ud%vhT&VTcnXW2ThIL^N{k29"
    b"X1U#MKGH6GD{!^&lPGzmPAIL`BEAdZF=XG(=a{gIWP(RKrEuyWQW{kV#sZpQzy`jsLcWZl9<jQRf!n5;H=>2pG0jX^4!~A#+kas@sHO8_6By"
    b"MLyNgQt4?+L{WULZHTuK1eY0B#fC@kXhtgS5Q;LJ(Ga+M>Nx2sAD5m>NN=E=slnJxISC1g(Wp35B1)P#Uu9jW>joLO3vmr}B8Wwqrd&3I@oN"
    b"_7CkTaRk;{pvOCu|6vM1tD8M`0fR`)q(_(gdT$2WkcIu9tYdLqT7U1tM69XtysJc|&nH#daK=WvNE+!4ZIbfhFQNhBFdXS6^d8XcNAUwC|WO"
    b"4MhTnucqxr$3ZY(?6b(y3Gg^-orCepSPo{ls>4=iClI)Vgm{JoZ!TSjiN*es$6h<Cs~n_r-%~q96XqIVpU~$xH>pHIXK(JM#s2$Fddi<PR$6"
    b"?g$E;#2gduygN_-oo5<~*EJh_n5SR=S(4^fcg#Z8m000000Dl`FPEg?FmuZN6uf!Rg^y004?t)D8Q$G!82><{90000000000z`vEy5H1)0Ks"
    b"fnpUohpb$Fb&5Y)}4NNd?jZ00000008{2NL%w<njXAolX0Vw<+kpcq&_{%Z4b3-I8C#c(rS`ME}q}Kuq6CqKzxqF?5-_$Q+i4<bdU3O<ETB("
    b"m^1G++V%UT!KW5)(?{NV^t4@avC!mXQ>RY1_LVAxY--(=>^!!7nX#(|($-M?89nWVc35$7yCKbtEibC~6c)4P5Yk80V{GL6=~Ie!FPG=<XUl"
    b"!*EX<nD8k)hHX&W3YKX`&IKV!r)!0)9MZ24Iu*7tUF)&SfZOQZ5PXS$dmS+bt`+*MiGh)*RIX?$2el^&Ly9WFBHOg8VjFr`s+=zPXI=g^pj%"
    b"FnfI@5Zm_*`mmAE$L6SFg<cEe&A@t!^>-irsOz3zJDnp(Z65_+gGQ5L!;`bP}A?*ql=P;Z{IP^U-)|V;`HI0ysPWxK3P$%*D5w&oRMW&o?cK"
    b"_b^FzkdAdJ#BT+7IS}f`U_L?kNp3(75)%>_xz1ZV5Y0q2d%n?*qT|U{b?I;{6K1=&@zXCn+i@8VCzSOjkHOY<Zt}C1m#M}z6@K5i5eK~Ai>u"
    b"UE4Bc1oUZ|C*C>%Q9M$gnPImh=YPD2wfhtR3=s<!{on)s&f7)IG4h`H=e$FFF@}HIzO4Jm*?x!-Lk2$J<K>%Zl4~+EB!Y2bj96*Y?dSkP7Y("
    b"KkGZ&F{89?^_dG9&D9<``;OnK-88uC+>sL9#%DFPe>7*x6-~x`^Qavad090-SuChJRoCAy*RK%7*srRNnG+B-k}J5lGQoo}*KkFOo`d+<;&O"
    b"x|^!eFJ=Iz~RDNBs%%|%c4SX;@iUz=wstMl{q#`XsIdt$t_!X1Hy`3)RwOJPA)VBxK1FO0`)^Tv41x0Keln;fjA>4p#1a?{=mYiV^{inZ9=c"
    b"w#NK^SPM4jROa>x3l-b?4PW(lI0y-X(@YY8z)7ZPsin=wx|1*m-VJnw5-2Cimo>)$VK~2!j+f8E-7jn{>W11UX{#{Rad4m^X&`+mP2kG676i"
    b"w2zL9GV9v;iE;@a9Z<fJRQ-vM%H^)r4yn#;FY{>NauH8k>V^!*;{hE{ICNEhMYpiH@?9_epXbB~@ew}`>o4m}%#ze8qnj)%S&=Jg(A22>;tl"
    b"*lZ^%}j*mmU5Sks0&("
)


def unpacked(text: bytes) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def test_chunks_that_h5py_wrote_are_found():
    data = unpacked(H5PY)
    found = list(hdf5.find_chunks(data))
    assert [numbers for _, numbers in found] == [Numbers(4, SIGNED, False, (20, 50), True)] * 2
    parts = [zlib.decompressobj().decompress(data[place:]) for place, _ in found]
    assert b"".join(parts) == b"".join(files.planes(half.astype("<i4").tobytes(), 4) for half in (RAMP[:20], RAMP[20:]))


@pytest.mark.parametrize("before", [0, 13])
def test_a_chunk_that_netcdf_wrote_is_found_where_its_header_goes_on_elsewhere(before):
    data = bytes(before) + unpacked(NETCDF4)
    ((place, numbers),) = hdf5.find_chunks(data)
    assert numbers == Numbers(4, FLOAT, False, (40, 50), True)
    assert zlib.decompressobj().decompress(data[place:]) == files.planes(RAMP.astype("<f4").tobytes(), 4)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("dtype", "kind"), [("<u2", UNSIGNED), (">i4", SIGNED), ("<f8", FLOAT), (">f4", FLOAT)])
def test_all_forms_of_numbers_are_found(version, split, dtype, kind):
    made = RAMP.astype(dtype)
    for shuffled in (False, True):
        data = files.hdf5(made, 10, version, shuffled, split)
        found = list(hdf5.find_chunks(data))
        assert len(found) == 4 and not list(hdf5.find_arrays(data))
        assert found[0][1] == Numbers(made.itemsize, kind, dtype[0] == ">", (10, 50), shuffled)
        for number, (place, _) in enumerate(found):
            part = made[10 * number :][:10].tobytes()
            expected = files.planes(part, made.itemsize) if shuffled else part
            assert zlib.decompressobj().decompress(data[place:]) == expected


def test_arrays_in_one_piece_are_found():
    made = np.add.outer(RAMP, [0, 9]).astype("<f4")
    data = files.hdf5(made)
    ((start, end, numbers),) = hdf5.find_arrays(data)
    assert data[start:end] == made.tobytes() and numbers == Numbers(4, FLOAT, False, (40, 50, 2))
    assert list(hdf5.find_arrays(data[:-1])) == list(hdf5.find_arrays(files.hdf5(RAMP.astype("<u2")))) == []


def test_a_file_that_names_the_same_tree_again_and_again_is_read_for_a_bounded_time():
    data = files.hdf5(RAMP.astype("<i4"), 10)
    header = data[64:576]
    many = header * 4000
    tree = struct.unpack_from("<Q", header, header.index(b"\x03\x02\x03") + 3)[0]
    node = b"TREE\1\0" + struct.pack("<H16x", 65535)
    hostile = data[:64] + header + node + bytes(40 * 200) + many
    assert tree == 576 and len(list(hdf5.find_chunks(hostile))) < len(hostile) // 16
    looped = data[:64] + header + b"TREE\1\7" + struct.pack("<H16x", 65535) + struct.pack("<4x4xQQQQ", 0, 0, 0, 576) * 9
    assert list(hdf5.find_chunks(looped)) == []


def test_many_files_share_what_may_be_read(monkeypatch):
    data = files.hdf5(RAMP.astype("<i4"), 10)  # 4 messages and 4 chunks
    assert len(list(hdf5.find_chunks(4 * data))) == 16
    monkeypatch.setattr(hdf5, "_FREE", 21)
    monkeypatch.setattr(hdf5, "_EACH", 1 << 20)
    assert len(list(hdf5.find_chunks(4 * data))) == 2 * 4 + 1


@pytest.mark.parametrize("axes", [0, 255])
def test_a_layout_with_an_impossible_number_of_axes_has_no_chunks(axes):
    data = files.hdf5(RAMP.astype("<i4"), 10).replace(b"\3\2\3", bytes([3, 2, axes]), 1)
    assert list(hdf5.find_chunks(data)) == []


@pytest.mark.parametrize("cut", range(64, 1100, 37))
def test_a_file_that_ends_early_is_no_error(cut):
    data = files.hdf5(RAMP.astype("<i4"), 10, 2, split=True)[:cut]
    assert len(list(hdf5.find_chunks(data))) <= 4 and list(hdf5.find_arrays(data)) == []
